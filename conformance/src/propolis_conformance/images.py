"""Images and the windows on them: what convolutions, pooling and interpolation share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import T


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

Sizes = int | tuple[int, ...]

IMAGE: Final = {"x": T("b c h w")}

ROW_SIZES: Final = {"l": 11, "k": 3}
"""Of a row of pixels and a kernel on it."""

IMAGE_SIZES: Final = {"h": 9, "w": 11, "i": 3, "j": 2}
"""Of an image and a kernel on it."""

WINDOWS: Final[AttributeSets] = (
    {"kernel": 2},
    {"kernel": 3, "stride": 2, "padding": 1},
    {"kernel": (3, 2), "stride": (1, 3), "padding": (1, 0)},
    {"kernel": 1},
)

SPREAD: Final[AttributeSets] = (
    {"kernel": 2, "dilation": 2},
    {"kernel": (2, 3), "dilation": (3, 1), "stride": 2},
)
"""Windows with holes."""


VIDEO: Final = {"x": T("b c d h w")}

VIDEO_SIZES: Final = {"d": 5, "h": 4, "w": 7, "e": 2, "i": 3, "j": 2}
"""Of a video and a kernel on it."""


def each(n: Sizes, rank: int) -> tuple[int, ...]:
    """Along each dimension, where one number stands for all."""
    return (n,) * rank if isinstance(n, int) else tuple(n)


def pair(n: Sizes) -> tuple[int, int]:
    """Along rows and columns, where one number stands for both."""
    first, second = (n, n) if isinstance(n, int) else n
    return first, second


def padded(x: Array, padding: Sizes, value: float) -> Array:
    """An image, or a video, with ``value`` around it."""
    sides = [(n, n) for n in each(padding, x.ndim - 2)]
    return np.pad(x, [(0, 0), (0, 0), *sides], constant_values=value)


def taps(
    x: Array, kernel: Sizes, stride: Sizes, dilation: Sizes
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each tap of the kernel its place, and what it sees of a padded image or video."""
    kernels, steps, spread = (each(n, x.ndim - 2) for n in (kernel, stride, dilation))
    geometry = list(zip(x.shape[2:], kernels, steps, spread, strict=True))
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in geometry]
    for place in np.ndindex(*kernels):
        seen = x
        for axis, (at, count, s, d) in enumerate(zip(place, counts, steps, spread, strict=True), 2):
            seen = seen.take(range(at * d, at * d + s * count, s), axis)
        yield place, seen
