"""Products of the norm of a sum of two rows with weights of the same dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import Priority
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_matmul_one import NOTES
from propolis_rocm_kernels.ops_matmul_one import PLAIN
from propolis_rocm_kernels.ops_matmul_one import unpacked
from propolis_rocm_kernels.ops_normed_quantized import launch_normed
from propolis_rocm_kernels.ops_normed_quantized import refused
from propolis_rocm_kernels.ops_normed_quantized_rope import EXCHANGED
from propolis_rocm_kernels.ops_normed_quantized_rope import TURNED
from propolis_rocm_kernels.ops_normed_quantized_rope import keeps_not
from propolis_rocm_kernels.ops_normed_quantized_rope import launch_kept
from propolis_rocm_kernels.ops_normed_quantized_rope import launch_turned
from propolis_rocm_kernels.ops_normed_quantized_rope import turns_not
from propolis_rocm_kernels.ops_quantized_matmul_one import THREADS


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("normed")

MODULE.constant("THREADS", THREADS)

_NORMED: Final = {
    (d, gated): MODULE.kernel(f"{name}_{d.name}", "PPPPPfPqqqqq")
    for d in PLAIN
    for gated, name in ((False, "plain"), (True, "gated"))
}
_TURNED: Final = {d: MODULE.kernel(f"turned_{d.name}", TURNED) for d in PLAIN}


def add_rms_norm_linear(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> None:
    """The sum of two rows, and the product of its norm."""
    launch_normed(_NORMED[w.dtype, gated], total, out, (x, residual, weight), eps, w)


def add_rms_norm_linear_rope(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> None:
    """The sum of two rows, and the product of its norm, pairs of whose rows are rotated."""
    rows, tables = (x, residual, weight), (positions, cos, sin)
    heads_of = head_dim, heads, interleaved
    launch_turned(_TURNED[w.dtype], total, out, rows, eps, w, tables, heads_of)


def add_rms_norm_linear_rope_kv_append(
    total: Tensor,
    out: Tensor,
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> None:
    """The same, whose keys and values go into a cache."""
    rows, tables = (x, residual, weight), (positions, cos, sin)
    launch_kept(
        _TURNED[w.dtype], (total, out), cache, rows, eps, w, slots, tables, heads, interleaved
    )


def _takes_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> str | None:
    del eps, gated
    return unpacked(w) or refused(x, residual, weight, w)


def _takes_heads(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> str | None:
    del positions, eps, heads, interleaved
    reason = unpacked(w) or turns_not(cos, sin, head_dim)
    return reason or refused(x, residual, weight, w, EXCHANGED)


def _keeps(
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> str | None:
    del slots, positions, eps, heads, interleaved
    reason = unpacked(w) or keeps_not(cache, cos, sin)
    return reason or refused(x, residual, weight, w, EXCHANGED)


OPS: Final = [
    implementation(
        name,
        fn,
        PLAIN,
        in_place=False,
        variant="one-row",
        priority=Priority.GENERIC + 10,
        supports=supports,
        notes=NOTES,
    )
    for name, fn, supports in (
        ("add_rms_norm_linear", add_rms_norm_linear, _takes_norm),
        ("add_rms_norm_linear_rope", add_rms_norm_linear_rope, _takes_heads),
        ("add_rms_norm_linear_rope_kv_append", add_rms_norm_linear_rope_kv_append, _keeps),
    )
]
