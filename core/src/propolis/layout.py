"""
Where the elements of a tensor lie in its storage.

A layout is shape, strides and offset, all counted in elements.  Strides are
never negative; a stride of 0 repeats one element (broadcast).  Every view that
core offers is a change of layout alone: no view ever touches data or dispatches.
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from functools import lru_cache
from typing import Any
from typing import Final

from propolis.errors import ShapeError


Shape = tuple[int, ...]


class Layout:
    """
    Shape, strides and offset of a tensor, in elements.  Immutable by convention.

    Attributes:
        shape: the size of each dimension.
        strides: elements between neighbours along each dimension.
        offset: the element of the storage at index (0, ..., 0).
        numel: the number of elements.
        is_contiguous: whether elements lie in row-major order without gaps
            (dimensions of size 1 are ignored; an empty tensor is contiguous).
    """

    __slots__ = ("is_contiguous", "numel", "offset", "shape", "strides")

    def __init__(self, shape: Shape, strides: Shape, offset: int = 0) -> None:
        self.shape: Final = shape
        self.strides: Final = strides
        self.offset: Final = offset
        self.numel: Final = math.prod(shape)
        self.is_contiguous: Final = self.numel == 0 or all(
            size == 1 or stride == expected
            for size, stride, expected in zip(shape, strides, row_major(shape), strict=True)
        )

    @staticmethod
    def contiguous(shape: Shape) -> Layout:
        """
        The row-major layout of that shape at offset 0.

        Raises:
            ShapeError: a size is negative or no whole number.
        """
        if isinstance(shape, int):
            msg = f"a shape is {shape}; supported: a size of each dimension, as ({shape},)"
            raise ShapeError(msg)
        return _contiguous(*shape)

    @property
    def extent(self) -> int:
        """Elements of storage from its start to the last one this layout reaches."""
        if self.numel == 0:
            return self.offset
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset + reach + 1

    def reshape(self, shape: Shape) -> Layout:
        """
        The same elements in row-major order under another shape; one size may be -1.

        Raises:
            ShapeError: the sizes do not fit, or the layout is not contiguous.
        """
        shape = _solve_shape(self.shape, self.numel, shape)
        if not self.is_contiguous:
            msg = (
                f"reshape: a view of shape {self.shape} with strides {self.strides} has no "
                f"row-major order in place; copy it first with .contiguous()"
            )
            raise ShapeError(msg)
        return Layout(shape, row_major(shape), self.offset)

    def permute(self, dims: Shape) -> Layout:
        """
        The dimensions in another order.

        Raises:
            ShapeError: ``dims`` does not name each dimension once.
        """
        rank = len(self.shape)
        wanted = tuple(d + rank if d < 0 else d for d in dims)
        if sorted(wanted) != list(range(rank)):
            msg = f"permute: {dims} does not name each dimension of shape {self.shape} once"
            raise ShapeError(msg)
        shape, strides = (tuple(of[d] for d in wanted) for of in (self.shape, self.strides))
        return Layout(shape, strides, self.offset)

    def narrow(self, dim: int, start: int, length: int) -> Layout:
        """
        The slice ``[start, start + length)`` of one dimension.

        Raises:
            ShapeError: the slice leaves the dimension.
        """
        dim = normalize_dim("narrow", dim, len(self.shape))
        start, length = whole_numbers("narrow:", (start, length))
        if start < 0 or length < 0 or start + length > self.shape[dim]:
            msg = (
                f"narrow: [{start}, {start + length}) leaves dimension {dim} of size "
                f"{self.shape[dim]} (shape {self.shape})"
            )
            raise ShapeError(msg)
        shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
        return Layout(shape, self.strides, self.offset + start * self.strides[dim])

    def broadcast_to(self, shape: Shape) -> Layout:
        """
        Repeat size-1 and missing leading dimensions (stride 0) up to ``shape``.

        Raises:
            ShapeError: a dimension is neither 1 nor the wanted size.
        """
        missing = len(shape) - len(self.shape)
        own = (1,) * missing + self.shape
        if missing < 0 or any(
            want < 0 or n not in (1, want) for n, want in zip(own, shape, strict=True)
        ):
            msg = f"broadcast_to: shape {self.shape} does not broadcast to {shape}"
            raise ShapeError(msg)
        strides = tuple(
            stride if n == want else 0
            for n, want, stride in zip(own, shape, (0,) * missing + self.strides, strict=True)
        )
        return Layout(shape, strides, self.offset)

    def unsqueeze(self, dim: int) -> Layout:
        """Insert a dimension of size 1 before ``dim`` (negative counts from the new end)."""
        dim = normalize_dim("unsqueeze to", dim, len(self.shape) + 1)
        stride = self.shape[dim] * self.strides[dim] if dim < len(self.shape) else 1
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return Layout(shape, (*self.strides[:dim], stride, *self.strides[dim:]), self.offset)

    def squeeze(self, dim: int) -> Layout:
        """
        Drop a dimension of size 1.

        Raises:
            ShapeError: its size is not 1.
        """
        dim = normalize_dim("squeeze", dim, len(self.shape))
        if self.shape[dim] != 1:
            msg = f"squeeze: dimension {dim} of {self.shape} has size {self.shape[dim]}, not 1"
            raise ShapeError(msg)
        shape, strides = (of[:dim] + of[dim + 1 :] for of in (self.shape, self.strides))
        return Layout(shape, strides, self.offset)

    def unflatten(self, dim: int, inner: int) -> Layout:
        """
        Split one dimension in two, the second of size ``inner``; any strides.

        Raises:
            ShapeError: its size is not a multiple of ``inner``.
        """
        dim = normalize_dim("unflatten", dim, len(self.shape))
        (inner,) = whole_numbers("unflatten:", (inner,))
        size, stride = self.shape[dim], self.strides[dim]
        if inner <= 0 or size % inner:
            msg = f"unflatten: dimension {dim} of shape {self.shape} is no multiple of {inner}"
            raise ShapeError(msg)
        shape = (*self.shape[:dim], size // inner, inner, *self.shape[dim + 1 :])
        strides = (*self.strides[:dim], inner * stride, stride, *self.strides[dim + 1 :])
        return Layout(shape, strides, self.offset)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (self.shape, self.strides, self.offset) == (other.shape, other.strides, other.offset)

    def __hash__(self) -> int:
        return hash((self.shape, self.strides, self.offset))

    def __repr__(self) -> str:
        return f"Layout(shape={self.shape}, strides={self.strides}, offset={self.offset})"


def row_major(shape: Shape) -> Shape:
    """The strides, in elements, of a row-major tensor of that shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def whole_numbers(what: str, given: tuple[Any, ...]) -> Shape:
    """
    Sizes or dimensions, given one by one or as one sequence of any kind.

    Raises:
        ShapeError: one is no whole number.
    """
    with suppress(TypeError):
        return tuple(map(operator.index, given))
    with suppress(TypeError, ValueError):
        (sizes,) = given
        return tuple(map(operator.index, sizes))
    msg = f"{what} {given} has a size that is no whole number"
    raise ShapeError(msg)


def normalize_dim(op: str, dim: int, rank: int) -> int:
    """
    ``dim`` counted from the front.

    Raises:
        ShapeError: a tensor of that rank has no such dimension.
    """
    try:
        dim = operator.index(dim)
    except TypeError as exc:
        msg = f"{op}: dimension {dim!r} is no whole number"
        raise ShapeError(msg) from exc
    if not -rank <= dim < rank:
        msg = f"{op}: dimension {dim} does not exist in a tensor of rank {rank}"
        raise ShapeError(msg)
    return dim % rank


@lru_cache(maxsize=4096, typed=True)  # as 2.0 equals 2
def _contiguous(*given: int) -> Layout:
    shape = whole_numbers("shape", given)
    if any(size < 0 for size in shape):
        msg = f"shape {shape} has a negative size"
        raise ShapeError(msg)
    return Layout(shape, row_major(shape))


def _solve_shape(given: Shape, numel: int, shape: Shape) -> Shape:
    """Replace the one -1 of ``shape``, and check that the sizes hold ``numel`` elements."""
    unknown = [i for i, size in enumerate(shape) if size == -1]
    known = math.prod(size for size in shape if size != -1)
    if len(unknown) == 1 and known > 0 and numel % known == 0:
        shape = tuple(numel // known if size == -1 else size for size in shape)
    if math.prod(shape) != numel or any(size < 0 for size in shape):
        msg = f"reshape: shape {given} ({numel} elements) cannot become {shape}"
        raise ShapeError(msg)
    return shape


def keeps_blocks(layout: Layout, block: int) -> bool:
    """Whether rows stay whole: unit stride and whole blocks along the last dimension."""
    if not layout.shape or layout.shape[-1] % block or layout.offset % block:
        return False
    return layout.strides[-1] == 1 and all(s % block == 0 for s in layout.strides[:-1])
