"""Larger (or smaller) images by interpolation, by torch's conventions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal
from typing import get_args

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


Mode = Literal["bilinear", "bicubic"]


def resize_size(
    shape: Shape, size: tuple[int, int] | None, scale: float | tuple[float, float] | None
) -> tuple[tuple[int, int], tuple[float, float] | None]:
    """
    The size of what :func:`resize2d` gives, and the scale of both dimensions, if there is one.

    >>> resize_size((1, 3, 5, 8), None, 1.5)
    ((7, 12), (1.5, 1.5))

    Raises:
        OpError: they say nothing of both dimensions, or something else than positive numbers.
    """
    factors = None if scale is None else _both(scale)
    if size is not None:
        height, width = size
        return (height, width), factors
    if factors is None:
        msg = "resize2d: give the size of the result, (height, width), or a scale"
        raise OpError(msg)
    height, width = shape[2:]
    return (int(height * factors[0]), int(width * factors[1])), factors  # as torch rounds it


def _both(scale: float | tuple[float, float]) -> tuple[float, float]:
    """The scales of height and width."""
    both = tuple(scale) if isinstance(scale, Iterable) else (scale, scale)
    if len(both) != 2 or not 0 < min(both) <= max(both) < float("inf"):
        msg = f"resize2d: scale {scale} must be a positive finite number, or two"
        raise OpError(msg)
    return both


def _weights(
    f: Callable[..., Any],
    x: Array,
    size: tuple[int, int] | None = None,
    *,
    scale: float | tuple[float, float] | None = None,
    **attributes: Any,
) -> Array:
    """The weights come of positions, whose rounding grows with the image."""
    size, _ = resize_size(x.shape, size, scale)
    largest = np.abs(x).max(initial=0)
    return np.full((*x.shape[:2], *size), largest * (2 + max(*x.shape[2:], *size) / 8))


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=_weights)
def resize2d(
    x: Tensor,
    /,
    size: tuple[int, int] | None = None,
    *,
    mode: Mode = "bilinear",
    antialias: bool = False,
    align_corners: bool = False,
    scale: float | tuple[float, float] | None = None,
) -> Meta:
    """
    Each element is blended of those around its source, as ``torch.nn.functional.interpolate``.

    With ``r = height / size[0]``, or ``1 / scale[0]``, the source of row ``i`` is ``(i + 1/2) * r
    - 1/2``, not below 0 if bilinear; with aligned corners it is ``i * r``, of ``r = (height - 1) /
    (size[0] - 1)``.
    Rows are blended by the triangle of width 2 or by the cubic of Keys (1981) of width 4, with
    ``a = -0.75`` and the image's edge repeated; so are columns.

    With ``antialias`` they are blended as by Pillow: filters are as much wider as the image
    becomes smaller, have ``a = -0.5``, end at the image's edge, and their weights sum to 1; the
    source of row ``i`` is ``(i + 1/2) * r - 1/2``, where aligned corners change ``r`` alone.

    Args:
        x: (batch, channels, height, width), a float dtype; computed in f32 or wider.
        size: (height, width) of the result; those of ``x`` times ``scale``, rounded down, when
            None.
        mode: ``"bilinear"`` or ``"bicubic"``.
        antialias: whether filters widen where the image becomes smaller.
        align_corners: whether the corners' centres coincide.
        scale: of the result to the source, a number or (vertical, horizontal); with a ``size``
            too, that was rounded from it; without aligned corners.

    Returns:
        (batch, channels, *size), dtype of ``x``.  Where ``x`` has NaN or infinities, so may have
        all elements whose filters reach them, with whatever weight.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: ``x`` is not of rank 4 or is empty.
        OpError: a size or scale is not positive, there is neither, the mode is another, or a
            scale comes with aligned corners.
    """
    if mode not in get_args(Mode):
        msg = f"resize2d: mode {mode!r} must be one of {', '.join(get_args(Mode))}"
        raise OpError(msg)
    if scale is not None and align_corners:
        msg = f"resize2d: scale {scale} goes without align_corners: give the size alone"
        raise OpError(msg)
    if len(x.shape) == 4 and (size is None or len(tuple(size)) == 2):  # else it is told below
        size, _ = resize_size(x.shape, size, scale)
    return _upsample("resize2d", x, tuple(size or ()))


def _upsample(name: str, x: Tensor, size: Shape) -> Meta:
    rank = 2 if name.endswith("2d") else 1
    fits = len(x.shape) == rank + 2 and x.numel > 0
    expect(name, fits, "x is (batch, channels, sizes) and not empty", x=x)
    if len(size) != rank or any(n < 1 for n in size):
        msg = f"{name}: size {size} must be {rank} positive numbers"
        raise OpError(msg)
    return (*x.shape[:2], *size), x.dtype
