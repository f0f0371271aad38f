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


def pair(n: Sizes) -> tuple[int, int]:
    """Along rows and columns, where one number stands for both."""
    first, second = (n, n) if isinstance(n, int) else n
    return first, second


def padded(x: Array, padding: Sizes, value: float) -> Array:
    """An image with ``value`` around it."""
    (top, left) = pair(padding)
    around = ((0, 0), (0, 0), (top, top), (left, left))
    return np.pad(x, around, constant_values=value)


def taps(
    x: Array, kernel: Sizes, stride: Sizes, dilation: Sizes
) -> Iterator[tuple[int, int, Array]]:
    """For each tap of the kernel its place, and what it sees of a padded image."""
    (kh, kw), (sh, sw), (dh, dw) = map(pair, (kernel, stride, dilation))
    rows = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    columns = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    for i, j in np.ndindex(kh, kw):
        yield (
            i,
            j,
            x[:, :, i * dh : i * dh + sh * rows : sh, j * dw : j * dw + sw * columns : sw][
                :, :, :rows, :columns
            ],
        )
