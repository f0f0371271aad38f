"""Copies, constants and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._constants import UNROLLED
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._layouts import turned_of
from propolis_rocm_kernels._product import launch
from propolis_rocm_kernels._product import tiles
from propolis_rocm_kernels._scalars import bits


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Tensor
    from propolis.layout import Layout
    from propolis_rocm_kernels._layouts import Turned
    from propolis_rocm_kernels._layouts import View

MODULE: Final = Module("fill")

_SIZES: Final = (1, 2, 4, 8)
_SIDES: Final = {n: MODULE.constant(f"TURNED_SIDE_B{n}", 32 if n > 4 else 64) for n in _SIZES}
"""Of the squares that a block turns, of elements of so many bytes."""
_COPY: Final = {
    n: (MODULE.kernel(f"copy_b{n}", "PPq"), MODULE.kernel(f"copy_b{n}_strided", "PPq2"))
    for n in _SIZES
}
_TURNED: Final = {n: MODULE.kernel(f"copy_b{n}_turned", "PPqqqqqqq2") for n in _SIZES}
_FILL: Final = {
    n: (MODULE.kernel(f"fill_b{n}", "PqQ"), MODULE.kernel(f"fill_b{n}_strided", "PqQ1"))
    for n in _SIZES
}
_ARANGE: Final = {
    d: MODULE.kernel(f"arange_{d.name}", "PqQQq1" if d.is_integer else "Pqddq1")
    for d in dtypes.PLAIN
}
_KV_APPEND: Final = {
    (n, p): MODULE.kernel(f"kv_append_b{n}_{p.name}", "PPPqqq3")
    for n in _SIZES
    for p in (dtypes.i32, dtypes.i64)
}
_U64: Final = (1 << 64) - 1


def copy(out: Tensor, x: Tensor, /) -> None:
    """A row-major copy, of block formats too."""
    if x.layout.numel == 0:
        return
    if x.layout.is_contiguous:
        _copy_bytes(out, x)
    else:
        _copy_strided(out, x)


def assign(target: Tensor, source: Tensor, /) -> None:
    """Overwrite every element of ``target`` with the source, broadcast to its shape."""
    to, layout = target.layout, source.layout
    if to.numel == 0:
        return
    if to.is_contiguous and layout.is_contiguous and layout.shape == to.shape:
        _copy_bytes(target, source)
        return
    _copy_strided(target, source)


def _copy_bytes(out: Tensor, x: Tensor) -> None:
    """Both contiguous: as the largest elements that fill the tensor and fit its addresses."""
    nbytes = x.nbytes
    to, start = out.ptr, x.ptr
    size = 8
    while (nbytes | to | start) % size:
        size //= 2
    blocks = blocks_for(nbytes, UNROLLED * PACK_BYTES)
    _COPY[size][0](out.device, blocks, to, start, nbytes // size)


def _copy_strided(out: Tensor, x: Tensor) -> None:
    """Any strides."""
    size = _size(out.dtype)
    to, start = _view(out, size), _view(x, size)
    if (turned := turned_of(to[0], to, start)) is not None:
        _copy_turned(out, x, size, turned)
        return
    packed, numel, run, starts = strided_of(to[0], to, start)
    pack = PACK_BYTES // size
    blocks = blocks_for(numel, pack if run >= pack else 1)
    for first, second in starts:
        pointers = out.ptr + first * size, x.ptr + second * size
        _COPY[size][1](out.device, blocks, *pointers, numel, packed)


def _copy_turned(out: Tensor, x: Tensor, size: int, turned: Turned) -> None:
    """Of either tensor other dimensions are the nearest."""
    rows, columns, strides, matrices, whole = turned
    pack = PACK_BYTES // size
    blocks = tiles(_SIDES[size], rows, columns) * matrices.numel
    for starts in matrices.starts:
        to, start = (t.ptr + n * size for t, n in zip((out, x), starts, strict=True))
        packs = (
            int(not (at % PACK_BYTES or n % pack)) for at, n in zip((start, to), whole, strict=True)
        )
        values = to, start, rows, columns, *strides, *packs
        launch(_TURNED[size], out.device, blocks, values, (matrices.packed,))


def _size(dtype: DType) -> int:
    """Bytes of what is moved at once: an element, or a piece of a block."""
    if dtype.is_block:
        return 1 if dtype.block_bytes % 2 else 2
    return dtype.block_bytes


def _view(tensor: Tensor, size: int) -> View:
    """Shape and strides, counted in what has ``size`` bytes."""
    layout: Layout = tensor.layout
    if not tensor.dtype.is_block:
        return layout.shape, layout.strides
    counts = [tensor.dtype.nbytes(s) // size for s in (layout.shape[-1], *layout.strides[:-1])]
    return (*layout.shape[:-1], counts[0]), (*counts[1:], 1)


def fill(target: Tensor, /, value: float) -> None:
    """Set every element to one value."""
    layout, size = target.layout, target.dtype.block_bytes
    if layout.numel == 0:
        return
    contiguous, strided = _FILL[size]
    element = bits(value, target.dtype)
    at = pointer(target)
    if layout.is_contiguous:
        blocks = blocks_for(layout.numel, PACK_BYTES // size)
        contiguous(target.device, blocks, at, layout.numel, element)
        return
    packed, numel, _, starts = strided_of(layout.shape, (layout.shape, layout.strides))
    for (start,) in starts:
        strided(target.device, blocks_for(numel, 1), at + start * size, numel, element, packed)


def arange(target: Tensor, /, start: float = 0, step: float = 1) -> None:
    """``start + i * step``, in row-major order."""
    layout, dtype = target.layout, target.dtype
    if layout.numel == 0:
        return
    if dtype.is_integer:
        start, step = int(start) & _U64, int(step) & _U64
    packed, numel, _, starts = strided_of(layout.shape, (layout.shape, layout.strides))
    for i, (offset,) in enumerate(starts):
        at = pointer(target) + offset * dtype.block_bytes
        blocks = blocks_for(numel, 1)
        _ARANGE[dtype](target.device, blocks, at, numel, start, step, i * numel, packed)


def kv_append(cache: Tensor, x: Tensor, positions: Tensor, /) -> None:
    """``cache[b, positions[b, t]] = x[b, t]``; positions outside the cache write nothing."""
    if x.layout.numel == 0:
        return
    size = _size(cache.dtype)
    _, (batch, position, head, element) = _view(cache, size)
    shape, strides = _view(x, size)
    packed, numel, run, _ = strided_of(
        shape,
        (shape, (batch, 0, head, element)),
        (shape, strides),
        (shape, (*positions.layout.strides, 0, 0)),
    )
    pack = PACK_BYTES // size
    _KV_APPEND[size, positions.dtype](
        cache.device,
        blocks_for(numel, pack if run >= pack else 1),
        cache.ptr,
        x.ptr,
        pointer(positions),
        numel,
        position,
        cache.layout.shape[1],
        packed,
    )


OPS: Final = [
    implementation("copy", copy, dtypes.ALL),
    implementation("assign", assign, dtypes.ALL, in_place=False),
    implementation("fill", fill, dtypes.PLAIN, in_place=False),
    implementation("arange", arange, dtypes.PLAIN, in_place=False),
    implementation(
        "kv_append",
        kv_append,
        {"cache": dtypes.ALL, "positions": (dtypes.i32, dtypes.i64)},
        in_place=False,
    ),
]
