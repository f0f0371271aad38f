"""Products of one row, or of the norm of a sum of two, with weights of the same dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_quantized_matmul_norm import launch_normed
from propolis_rocm_kernels.ops_quantized_matmul_norm import refused
from propolis_rocm_kernels.ops_quantized_matmul_one import THREADS
from propolis_rocm_kernels.ops_quantized_matmul_one import held
from propolis_rocm_kernels.ops_quantized_matmul_one import plan
from propolis_rocm_kernels.ops_quantized_matmul_one import refusal
from propolis_rocm_kernels.ops_quantized_matmul_rope import EXCHANGED
from propolis_rocm_kernels.ops_quantized_matmul_rope import launch_turned
from propolis_rocm_kernels.ops_quantized_matmul_rope import turns_not


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("matmul_one")

MODULE.constant("THREADS", THREADS)

_TYPES: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_SIZES: Final = 5 * "q"
_PLAIN: Final = {d: MODULE.kernel(f"plain_{d.name}", f"PPPqP{_SIZES}") for d in _TYPES}
_NORMED: Final = {
    (d, gated): MODULE.kernel(f"{name}_{d.name}", f"PPPPPfP{_SIZES}")
    for d in _TYPES
    for gated, name in ((False, "normed"), (True, "gated"))
}
_TURNED: Final = {
    d: MODULE.kernel(f"turned_{d.name}", f"PPPPPfPPPP{_SIZES}qqqiiii") for d in _TYPES
}


def linear_one(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """``x @ w.T + bias`` of one row."""
    if not out.numel:
        return
    n, depth = w.shape
    device = cast("RocmDevice", out.device)
    made = plan(device, n, w)
    shift = (0, 0) if bias is None else (pointer(bias), bias.strides[0])
    sizes = n, depth, made.row_bytes, made.lanes, made.threads
    values = pointer(out), pointer(x), *shift, pointer(w), *sizes
    _PLAIN[w.dtype](device, made.blocks, *values, threads=made.threads, shared=made.shared)


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


def _in_chunks(w: Tensor) -> str | None:
    """Why a weight's rows are not loaded in whole packs; None where they are."""
    size = w.dtype.block_bytes
    places = (w.layout.offset, w.shape[1], w.strides[0] if w.shape[0] > 1 else 0)
    if w.strides[1] != 1 or any(place * size % PACK_BYTES for place in places):
        return f"rows of w lie where no whole packs of {PACK_BYTES} bytes can be loaded"
    return None


def _takes(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    del bias
    return _in_chunks(w) or refusal("x", x, held(w)[1])


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
    return _in_chunks(w) or refused(x, residual, weight, w)


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
    reason = _in_chunks(w) or turns_not(cos, sin, head_dim)
    return reason or refused(x, residual, weight, w, EXCHANGED)


OPS: Final = [
    implementation(
        name,
        fn,
        _TYPES,
        in_place=False,
        variant="one-row",
        priority=Priority.GENERIC + 10,
        supports=supports,
        notes="one row of activations, sums in f32",
    )
    for name, fn, supports in (
        ("linear", linear_one, _takes),
        ("add_rms_norm_linear", add_rms_norm_linear, _takes_norm),
        ("add_rms_norm_linear_rope", add_rms_norm_linear_rope, _takes_heads),
    )
]
