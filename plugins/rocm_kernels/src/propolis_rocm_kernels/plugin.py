"""The hooks of the HIP kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import DoctorCheck
from propolis import PluginInfo
from propolis import hookimpl
from propolis_rocm_kernels._families import families


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Device
    from propolis import OpImpl


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    return PluginInfo("rocm_kernels", api=1, description="HIP kernels for AMD GPUs")


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """The kernels of every family, for any AMD GPU: code objects, or hipRTC."""
    if device.kind == "rocm":
        for family in families():
            yield from family.OPS


@hookimpl
def propolis_doctor_checks() -> Iterable[DoctorCheck]:
    """Whether the GPUs of this machine find code objects."""
    from propolis_rocm_kernels.doctor import code_objects  # noqa: PLC0415  (needs hip-python)

    yield DoctorCheck("rocm_kernels.code-objects", code_objects)
