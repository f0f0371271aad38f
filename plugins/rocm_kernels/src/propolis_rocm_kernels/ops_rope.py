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
_KEPT: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_APPEND: Final = {
    (interleaved, given, kept): MODULE.kernel(
        f"append_{'interleaved' if interleaved else 'half'}_{given.name}_{kept.name}",
        "PPPPPPqqqqqqqqqqqqqi4",
    )
    for interleaved in (False, True)
    for kept in _KEPT
    for given in {dtypes.f32, kept}
}


@lru_cache(maxsize=1024)
def _plan(
    shape: Shape, strides: Shape, half: int, size: int, into: tuple[Shape, Shape] | None = None
) -> tuple[int, ...]:
    """
    (Whether packs are whole everywhere, blocks).

    Args:
        shape: of what is turned.
        strides: its own.
        half: pairs that are turned.
        size: bytes of an element.
        into: shape and strides of what is written; None where that is fresh memory.
    """
    pack = pack_of(size, heavy=True)
    batch, tokens, heads, dim = shape
    whole = [half, dim]
    for own, steps in ((shape, strides), *((into,) if into else ())):
        whole += [s for s, n in zip(steps[:-1], own[:-1], strict=True) if n > 1]
        whole += [0 if steps[-1] == 1 else 1]
    contiguous = not any(n % pack for n in whole)
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


def rope_kv_append(
    cache: Tensor,
    x: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> None:
    """Keys, rotated, and values into a cache; slots outside of it are not written."""
    layout, kept, c, s = x.layout, cache.layout, cos.layout, sin.layout
    if layout.numel == 0:
        return
    shape, strides = layout.shape, layout.strides
    rows, half = c.shape
    outer = shape[:-1]
    batch, slot, head, element = kept.strides
    packed, heads, _, _ = strided_of(
        outer,
        (outer, strides[:-1]),
        (outer, (batch, 0, head)),
        (outer, (*slots.layout.strides, 0)),
        (outer, (*positions.layout.strides, 0)),
    )
    into = kept.shape, kept.strides
    whole, blocks = _plan(shape, strides, half, dtypes.f32.block_bytes, into)
    _APPEND[interleaved, x.dtype, cache.dtype](
        cache.device,
        blocks,
        pointer(cache),
        pointer(x),
        pointer(slots),
        pointer(positions),
        pointer(cos),
        pointer(sin),
        heads,
        shape[2],
        shape[-1],
        element,
        strides[-1],
        slot,
        kept.shape[1],
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
    implementation("rope_kv_append", rope_kv_append, _KEPT, in_place=False),
]
