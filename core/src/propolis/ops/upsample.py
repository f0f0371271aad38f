"""Larger (or smaller) images by interpolation, by torch's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.errors import OpError
from propolis.opspec.infer import expect
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.layout import Shape
    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


@op({"x": PLAIN}, tolerance=dict.fromkeys(PLAIN, EXACT))
def upsample_nearest1d(x: Tensor, /, size: int) -> Meta:
    """
    ``out[i] = x[i * length // size]``, exactly.

    Args:
        x: (batch, channels, length), any plain dtype.
        size: the length of the result.

    Returns:
        (batch, channels, size), dtype of ``x``.

    Raises:
        ShapeError: ``x`` is not of rank 3 or is empty.
        OpError: the size is not positive.
    """
    return _upsample("upsample_nearest1d", x, (size,))


@op({"x": PLAIN}, tolerance=dict.fromkeys(PLAIN, EXACT))
def upsample_nearest2d(x: Tensor, /, size: tuple[int, int]) -> Meta:
    """
    ``out[i, j] = x[i * height // size[0], j * width // size[1]]``, exactly.

    Args:
        x: (batch, channels, height, width), any plain dtype.
        size: (height, width) of the result.

    Returns:
        (batch, channels, *size), dtype of ``x``.

    Raises:
        ShapeError: ``x`` is not of rank 4 or is empty.
        OpError: a size is not positive.
    """
    return _upsample("upsample_nearest2d", x, tuple(size))


def _blends(
    f: Callable[..., Any], x: Array, size: tuple[int, int], *, align_corners: bool = False
) -> Array:
    """The shares come of positions, whose rounding grows with the image."""
    far = max(*x.shape[2:], *size) / 8 * np.nanmax(np.abs(x[np.isfinite(x)]), initial=0)
    return np.asarray(f(np.abs(x), size, align_corners=align_corners) + far)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=_blends)
def upsample_bilinear2d(
    x: Tensor,
    /,
    size: tuple[int, int],
    *,
    align_corners: bool = False,
) -> Meta:
    """
    Each element is blended of the four that surround it.

    The source of row ``i`` is ``max(0, (i + 1/2) * height / size[0] - 1/2)``, or ``i *
    (height - 1) / (size[0] - 1)`` with aligned corners; so for columns.

    Args:
        x: (batch, channels, height, width), a float dtype; computed in f32 or wider.
        size: (height, width) of the result.
        align_corners: whether the corners' centres coincide.

    Returns:
        (batch, channels, *size), dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: ``x`` is not of rank 4 or is empty.
        OpError: a size is not positive.
    """
    return _upsample("upsample_bilinear2d", x, tuple(size))


def _upsample(name: str, x: Tensor, size: Shape) -> Meta:
    rank = 2 if name.endswith("2d") else 1
    fits = len(x.shape) == rank + 2 and x.numel > 0
    expect(name, fits, "x is (batch, channels, sizes) and not empty", x=x)
    if len(size) != rank or any(n < 1 for n in size):
        msg = f"{name}: size {size} must be {rank} positive numbers"
        raise OpError(msg)
    return (*x.shape[:2], *size), x.dtype
