"""The hooks of the HIP kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import DoctorCheck
from propolis import PluginInfo
from propolis import hookimpl
from propolis_rocm_kernels import ops_affine
from propolis_rocm_kernels import ops_attention
from propolis_rocm_kernels import ops_binary
from propolis_rocm_kernels import ops_cast
from propolis_rocm_kernels import ops_extreme
from propolis_rocm_kernels import ops_fill
from propolis_rocm_kernels import ops_group_norm
from propolis_rocm_kernels import ops_indexing
from propolis_rocm_kernels import ops_matmul
from propolis_rocm_kernels import ops_norm
from propolis_rocm_kernels import ops_qmatmul
from propolis_rocm_kernels import ops_qmatmul_k
from propolis_rocm_kernels import ops_quantized
from propolis_rocm_kernels import ops_reduce
from propolis_rocm_kernels import ops_rope
from propolis_rocm_kernels import ops_softmax
from propolis_rocm_kernels import ops_ternary
from propolis_rocm_kernels import ops_unary


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Device
    from propolis import OpImpl

FAMILIES: Final = (
    ops_affine,
    ops_attention,
    ops_binary,
    ops_cast,
    ops_extreme,
    ops_fill,
    ops_group_norm,
    ops_indexing,
    ops_matmul,
    ops_norm,
    ops_qmatmul,
    ops_qmatmul_k,
    ops_quantized,
    ops_reduce,
    ops_rope,
    ops_softmax,
    ops_ternary,
    ops_unary,
)


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    return PluginInfo("rocm_kernels", api=1, description="HIP kernels for AMD GPUs")


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """The kernels of every family, for any AMD GPU: code objects, or hipRTC."""
    if device.kind == "rocm":
        for family in FAMILIES:
            yield from family.OPS


@hookimpl
def propolis_doctor_checks() -> Iterable[DoctorCheck]:
    """Whether the GPUs of this machine find code objects."""
    from propolis_rocm_kernels.doctor import code_objects  # noqa: PLC0415  (needs hip-python)

    yield DoctorCheck("rocm_kernels.code-objects", code_objects)
