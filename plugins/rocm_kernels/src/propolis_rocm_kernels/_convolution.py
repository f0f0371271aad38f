"""Convolutions as numbers: what all of them have in common, in two dimensions or three."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis_rocm_kernels._layouts import collapse


if TYPE_CHECKING:
    from propolis.layout import Shape
    from propolis.ops.conv import Sizes
    from propolis_rocm_kernels._layouts import View

    Attributes = tuple[Sizes, Sizes, Sizes]

FARTHEST: Final = (1 << 29) - 1
"""Places along a dimension; sums of some stay within 32 bits."""


class Convolution(NamedTuple):
    """
    A convolution without its tensors; spatial dimensions are rows and columns, or planes, rows,
    and columns.

    Attributes:
        x: strides of (image, channel, ...).
        w: strides of (output channel, channel, ...), within a group.
        group: from a group to the next, in ``w``.
        images: how many there are.
        groups: of channels.
        outs: output channels of a group.
        channels: of ``x``, in a group.
        size: of ``x``.
        out: of the output.
        transposed: whether outputs are ``stride`` apart, not inputs.
    """

    x: Shape
    w: Shape
    group: int
    images: int
    groups: int
    outs: int
    channels: int
    size: Shape
    out: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    transposed: bool

    @property
    def x_step(self) -> int | None:
        """From an output's only place in ``x`` to the next one's; None where that is not all."""
        own = max(self.kernel) == 1 and not any(self.padding) and self.out == self.size
        if not own or self.groups > 1:
            return None
        dims = collapse(self.size, (self.x[2:],))
        return dims[0][1] if len(dims) == 1 else None

    @property
    def w_step(self) -> int | None:
        """From a weight of an output channel to its next; None if no one number says it."""
        dims = collapse((self.channels, *self.kernel), (self.w[1:],))
        if self.transposed or len(dims) > 1:
            return None
        [(size, step)] = dims
        return step if size > 1 else 1

    @property
    def phases(self) -> int:
        """Kinds of output: see ``native/propolis_windows.h``."""
        return math.prod(map(min, self.stride, self.out)) if self.transposed else 1

    @property
    def planes(self) -> Shape:
        """How many planes of the output there are, of three dimensions; nothing of two."""
        return self.out[:-2]

    @property
    def windows(self) -> int:
        """Outputs of a kind, of a plane, at most."""
        apart = self.stride[-2:] if self.transposed else (1, 1)
        return math.prod((n - 1) // s + 1 for n, s in zip(self.out[-2:], apart, strict=True))

    @property
    def skip(self) -> Shape:
        """Every so-manieth tap of a kernel meets an element of ``x``, if it is transposed."""
        return tuple(s // math.gcd(s, d) for s, d in zip(self.stride, self.dilation, strict=True))


@lru_cache(maxsize=4096)
def convolution(
    out: Shape,
    x: View,
    w: View,
    attributes: Attributes,
    groups: int,
    *,
    transposed: bool,
) -> Convolution:
    """
    Of one dimension to three; a row is an image of height 1.

    Args:
        out: the shape of the output.
        x: shape and strides of (images, channels, sizes).
        w: and of (out channels, channels of a group, kernel), or of a transposed one (channels,
            out channels of a group, kernel).
        attributes: stride, padding and dilation.
        groups: of channels.
        transposed: which it is.
    """
    rank = len(out) - 2
    missing = max(0, 2 - rank)
    stride, padding, dilation = (
        (neutral,) * missing + ((n,) * rank if isinstance(n, int) else n)
        for n, neutral in zip(attributes, (1, 0, 1), strict=True)
    )
    size, target, kernel = ((1,) * missing + shape[2:] for shape in (x[0], out, w[0]))
    x_strides, w_strides = ((*strides[:2], *(0,) * missing, *strides[2:]) for _, strides in (x, w))
    outs, channels = out[1] // groups, x[0][1] // groups
    group = w_strides[0] * (channels if transposed else outs)
    if transposed:
        w_strides = (w_strides[1], w_strides[0], *w_strides[2:])
    # Of one window, or of one tap, distances mean nothing, and may be any number.
    if transposed:
        stride = tuple(min(s, 2 * FARTHEST + 2) for s in stride)
    else:
        stride = tuple(1 if n == 1 else s for s, n in zip(stride, target, strict=True))
    dilation = tuple(1 if k == 1 else d for d, k in zip(dilation, kernel, strict=True))
    return Convolution(
        *(x_strides, w_strides, group, out[0], groups, outs, channels),
        *(size, target, kernel, stride, padding, dilation, transposed),
    )


def too_far(
    x: Shape, w: Shape, attributes: Attributes, *, transposed: bool, more: Sizes = 0
) -> str | None:
    """
    Why the kernels cannot do it, or None: places along a dimension are 32 bits wide in them.

    >>> too_far((1, 3, 1 << 30), (8, 3, 5), (1, 2, 1), transposed=False)
    '1073741828 places along a dimension; supported: 536870911'
    """
    longest = max(*x, *w)
    stride, padding, dilation, end = (
        n if isinstance(n, int) else max(n) for n in (*attributes, more)
    )
    if transposed:
        whole = (max(x[2:]) - 1) * stride + (max(w[2:]) - 1) * dilation + 1
        longest = max(longest, whole + end)
    else:
        longest += 2 * padding
    if longest <= FARTHEST:
        return None
    return f"{longest} places along a dimension; supported: {FARTHEST}"
