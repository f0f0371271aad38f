"""Rotary position embeddings."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pack_of
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.layout import Shape

MODULE: Final = Module("rope")

_POSITIONS: Final = (dtypes.i32, dtypes.i64)
_ROPE: Final = {
    (interleaved, d, p): MODULE.kernel(
        f"{'interleaved' if interleaved else 'half'}_{d.name}_{p.name}", "PPPPPqqqqqqqqqi2"
    )
    for interleaved in (False, True)
    for d in dtypes.FLOATS
    for p in _POSITIONS
}


@lru_cache(maxsize=1024)
def _plan(shape: Shape, strides: Shape, half: int, size: int) -> tuple[int, ...]:
    """(whether packs are whole everywhere, blocks)."""
    pack = pack_of(size, heavy=True)
    batch, tokens, heads, dim = shape
    whole = (half, dim, *(s for s, n in zip(strides[:-1], shape, strict=False) if n > 1))
    contiguous = strides[-1] == 1 and not any(n % pack for n in whole)
    each = pack if contiguous else 1
    units = half // each + -(-(dim - 2 * half) // (2 * each))
    return int(contiguous), blocks_for(batch * tokens * heads * units, 1)


def rope(
    out: Tensor,
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate pairs of elements of each head by its token's position."""
    layout, at, c, s = x.layout, positions.layout, cos.layout, sin.layout
    if layout.numel == 0:
        return
    shape, strides = layout.shape, layout.strides
    rows, half = c.shape
    outer = shape[:-1]
    packed, heads, _, _ = strided_of(outer, (outer, strides[:-1]), (outer, (*at.strides, 0)))
    whole, blocks = _plan(shape, strides, half, x.dtype.block_bytes)
    _ROPE[interleaved, x.dtype, positions.dtype](
        out.device,
        blocks,
        pointer(out),
        pointer(x),
        pointer(positions),
        pointer(cos),
        pointer(sin),
        heads,
        shape[-1],
        strides[-1],
        rows,
        half,
        c.strides[0],
        s.strides[0],
        c.strides[1],
        s.strides[1],
        whole,
        packed,
    )


OPS: Final = [
    implementation("rope", rope, {"x": dtypes.FLOATS, "positions": _POSITIONS}, in_place=False),
]
