"""The hooks of the CPU reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import PluginInfo
from propolis import hookimpl
from propolis_cpu_ref import ops_attention
from propolis_cpu_ref import ops_binary
from propolis_cpu_ref import ops_cast
from propolis_cpu_ref import ops_conv
from propolis_cpu_ref import ops_fill
from propolis_cpu_ref import ops_indexing
from propolis_cpu_ref import ops_matmul
from propolis_cpu_ref import ops_moe
from propolis_cpu_ref import ops_norm
from propolis_cpu_ref import ops_pool
from propolis_cpu_ref import ops_quantized
from propolis_cpu_ref import ops_random
from propolis_cpu_ref import ops_reduce
from propolis_cpu_ref import ops_rope
from propolis_cpu_ref import ops_softmax
from propolis_cpu_ref import ops_sort
from propolis_cpu_ref import ops_ternary
from propolis_cpu_ref import ops_unary
from propolis_cpu_ref import ops_upsample
from propolis_cpu_ref._threads import limit_blas


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Device
    from propolis import OpImpl

FAMILIES = (
    ops_attention,
    ops_binary,
    ops_cast,
    ops_conv,
    ops_fill,
    ops_indexing,
    ops_matmul,
    ops_moe,
    ops_norm,
    ops_pool,
    ops_quantized,
    ops_random,
    ops_reduce,
    ops_rope,
    ops_softmax,
    ops_sort,
    ops_ternary,
    ops_unary,
    ops_upsample,
)


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    return PluginInfo("cpu_ref", api=1, description="every op in numpy: the reference")


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """One implementation of each op, for the CPU."""
    if device.kind == "cpu":
        limit_blas(device.threads)
        for family in FAMILIES:
            yield from family.OPS
