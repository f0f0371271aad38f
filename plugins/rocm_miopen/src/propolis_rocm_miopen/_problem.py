"""A convolution as MIOpen is told of it: in two or three spatial dimensions, packed."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import NamedTuple


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.ops.conv import Sizes

LARGEST = 2**31 - 1
"""Elements of a tensor: solutions count them in 32 bits."""

_BYTES_OF_SUMS = 4


class Problem(NamedTuple):
    """
    One of them, without its tensors.

    Attributes:
        dtype: of all tensors.
        x: (batch, in_channels, ...), the spatial sizes last.
        w: (out_channels, in_channels / groups, ...); transposed, (in_channels, out_channels /
            groups, ...).
        y: (batch, out_channels, ...).
        stride: one for each spatial dimension, as the next.
        padding: zeros on both sides; transposed, what is cut off.
        dilation: between the taps of a window.
        extra: at the end of a transposed one's output.
        groups: of channels.
        transposed: whether it is one.
    """

    dtype: DType
    x: Shape
    w: Shape
    y: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    extra: Shape
    groups: int
    transposed: bool

    def __str__(self) -> str:
        """
        For people, and for the file that solutions are kept in.

        >>> from propolis import dtypes
        >>> sizes = (1, 4, 8, 8), (6, 4, 3, 3), (1, 6, 8, 8)
        >>> print(Problem(dtypes.f16, *sizes, (1, 1), (1, 1), (1, 1), (0, 0), 1, False))
        conv f16 1x4x8x8 by 6x4x3x3, stride 1x1, padding 1x1
        """
        kind = "transposed conv" if self.transposed else "conv"
        parts = [f"{kind} {self.dtype} {_times(self.x)} by {_times(self.w)}"]
        parts += [f"stride {_times(self.stride)}", f"padding {_times(self.padding)}"]
        if set(self.dilation) != {1}:
            parts.append(f"dilation {_times(self.dilation)}")
        if any(self.extra):
            parts.append(f"output padding {_times(self.extra)}")
        if self.groups > 1:
            parts.append(f"{self.groups} groups")
        return ", ".join(parts)

    @property
    def stores_short_terms(self) -> bool:
        """Whether a product (GEMM) has to store its terms in 16 bits before they are added."""
        return self.transposed and self.dtype.block_bytes < _BYTES_OF_SUMS


def _times(sizes: Shape) -> str:
    return "x".join(map(str, sizes))


@lru_cache(maxsize=4096)
def problem(
    dtype: DType,
    x: Shape,
    w: Shape,
    y: Shape,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    output_padding: Sizes | None = None,
) -> Problem:
    """
    What an op's arguments say; of one spatial dimension, rows of an image of height 1.

    Args:
        dtype: of all tensors.
        x: its shape.
        w: its shape.
        y: its shape.
        stride: as the op takes it; so ``padding`` and ``dilation``.
        padding: see there.
        dilation: see there.
        groups: of channels.
        output_padding: of a transposed one; None for the others.
    """
    rank = len(x) - 2
    extra = (0,) * rank if output_padding is None else _each(output_padding, rank)
    steps, pads, holes = _each(stride, rank), _each(padding, rank), _each(dilation, rank)
    if rank == 1:
        x, w, y = ((*shape[:2], 1, shape[2]) for shape in (x, w, y))
        steps, pads, holes, extra = (1, *steps), (0, *pads), (1, *holes), (0, *extra)
    transposed = output_padding is not None
    return Problem(dtype, x, w, y, steps, pads, holes, extra, groups, transposed)


def _each(value: Sizes, rank: int) -> Shape:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def refusal(given: Problem) -> str | None:
    """Why MIOpen is not asked; None where it is."""
    if math.prod(given.x) * math.prod(given.w) == 0:
        return "it sums nothing"
    for name, shape in (("x", given.x), ("w", given.w), ("the output", given.y)):
        if math.prod(shape) > LARGEST:
            return f"{name} has {math.prod(shape)} elements, more than 32 bits count"
    return None


__all__ = ["LARGEST", "Problem", "problem", "refusal"]
