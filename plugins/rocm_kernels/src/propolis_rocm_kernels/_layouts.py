"""Layouts as kernels take them: dimensions collapsed, divisions prepared, all by value."""

from __future__ import annotations

import itertools
import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis_rocm_kernels._constants import MAX_RANK
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._signature import strided


if TYPE_CHECKING:
    from propolis.layout import Shape

View = tuple["Shape", "Shape"]
"""Shape and strides of a tensor, in elements."""


class Strided(NamedTuple):
    """
    Tensors of one shape, that a kernel goes through together in row-major order.

    Attributes:
        packed: the ``StridedOf<K>`` of the header.
        numel: the elements that it covers.
        run: so many neighbours, a power of two, lie in one row wherever a pack starts.
        starts: where it is to begin, an offset in elements for each tensor: once, but for
            layouts of more dimensions than the kernels know.
    """

    packed: bytes
    numel: int
    run: int
    starts: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=4096)
def strided_of(shape: Shape, *views: View) -> Strided:
    """
    The ``StridedOf<K>`` of K tensors that broadcast to one shape.

    Args:
        shape: the common one.
        views: shape and strides, in elements, of each tensor.

    >>> strided_of((2, 3, 4), ((2, 3, 4), (12, 4, 1)), ((4,), (1,))).run
    4
    """
    strides = tuple(_broadcast(shape, *view) for view in views)
    dims = collapse(shape, strides)
    outer, inner = dims[:-MAX_RANK], dims[-MAX_RANK:]
    steps = (range(size) for size, *_ in outer)
    starts = tuple(
        tuple(
            sum(i * s for i, s in zip(index, column, strict=True))
            for column in _columns(outer, len(strides))
        )
        for index in itertools.product(*steps)
    )
    run = _run(inner)
    return Strided(_pack(inner, len(strides), run), math.prod(d[0] for d in inner), run, starts)


class Turned(NamedTuple):
    """
    Matrices whose rows become columns: a copy from rows of one tensor to those of another.

    Attributes:
        rows: of each matrix as it is written; so many neighbours are read.
        columns: so many neighbours are written.
        strides: between rows where they are written, and between columns where they are read.
        matrices: where each of the others begins, as it is written and read.
        whole: divides rows and all strides of what is read, and columns and those of the other.
    """

    rows: int
    columns: int
    strides: tuple[int, int]
    matrices: Strided
    whole: tuple[int, int]


_LEAST: Final = 16  # neighbours of either tensor: with fewer, squares are mostly empty


@lru_cache(maxsize=4096)
def turned_of(shape: Shape, out: View, x: View) -> Turned | None:
    """
    How a copy turns matrices; None where it does not.

    Args:
        shape: of ``out``, which ``x`` is broadcast to.
        out: shape and strides, in elements, of what is written.
        x: the same of what is read.

    >>> turned_of((2, 640, 64), ((2, 640, 64), (40960, 64, 1)), ((2, 640, 64), (40960, 1, 640)))[:3]
    (640, 64, (64, 640))
    """
    dims = collapse(shape, (_broadcast(shape, *out), _broadcast(shape, *x)))
    down, along = (
        next((d for d in dims if d[which] == 1 and d[0] >= _LEAST), None) for which in (2, 1)
    )
    if down is None or along is None or down is along or len(dims) > MAX_RANK + 2:
        return None
    rest = [d for d in dims if d is not down and d is not along]
    sizes, to, start = zip(*rest, strict=True) if rest else ((), (), ())
    return Turned(
        down[0],
        along[0],
        (down[1], along[2]),
        strided_of(sizes, (sizes, to), (sizes, start)),
        (math.gcd(down[0], along[2], *start), math.gcd(along[0], down[1], *to)),
    )


def walk(shape: Shape, *strides: Shape) -> bytes:
    """
    The ``StridedOf<K>`` of K numbers, which grow by so much along each of at most six dimensions.

    Places of windows, rows and columns are such numbers as offsets are.
    """
    return strided_of(shape, *((shape, s) for s in strides)).packed


def _broadcast(shape: Shape, own: Shape, strides: Shape) -> Shape:
    """Strides under the common shape: 0 where the tensor repeats."""
    missing = len(shape) - len(own)
    repeats = (0 if size == 1 else stride for size, stride in zip(own, strides, strict=True))
    return (*((0,) * missing), *repeats)


def collapse(shape: Shape, strides: tuple[Shape, ...]) -> list[tuple[int, ...]]:
    """
    (size, stride of each tensor) of as few dimensions as have the same elements in order.

    >>> collapse((2, 3, 1, 4), ((12, 4, 4, 1), (4, 0, 0, 1)))
    [(2, 12, 4), (3, 4, 0), (4, 1, 1)]
    """
    dims: list[tuple[int, ...]] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if dims and all(
            last == step * size for last, step in zip(dims[-1][1:], steps, strict=True)
        ):
            dims[-1] = (dims[-1][0] * size, *steps)
        else:
            dims.append((size, *steps))
    return dims or [(1, *(0 for _ in strides))]


def _columns(dims: list[tuple[int, ...]], tensors: int) -> list[list[int]]:
    return [[d[1 + k] for d in dims] for k in range(tensors)]


def _run(dims: list[tuple[int, ...]]) -> int:
    """The largest power of two, at most a pack, that rows and what lies between them allow."""
    size, *steps = dims[-1]
    rows = [d[1 + k] for d in dims[:-1] for k, step in enumerate(steps) if step == 1]
    return math.gcd(PACK_BYTES, size, *rows)


def _pack(dims: list[tuple[int, ...]], tensors: int, run: int) -> bytes:
    missing = [0] * (MAX_RANK - len(dims))
    sizes = [d[0] for d in dims]
    magic, shifts = zip(*map(reciprocal, sizes), strict=True)
    strides = [s for column in _columns(dims, tensors) for s in (*column, *missing)]
    return struct.pack(
        strided(tensors).letters,
        *(*sizes, *missing),
        *(*magic, *missing),
        *strides,
        *(*shifts, *missing),
        len(dims),
        run,
    )


def reciprocal(size: int) -> tuple[int, int]:
    """
    (magic, shift) with ``i // size == (i * magic >> 64) >> shift`` for 0 <= i < 2**63.

    Granlund and Montgomery, "Division by invariant integers using multiplication" (1994):
    63-bit dividends need a multiplier of 64 bits.  A size of 1 is never divided by.
    """
    if size < 2:
        return 0, 0
    bits = (size - 1).bit_length()
    return (1 << 63 + bits) // size + 1, bits - 1
