"""Pooling over windows of two or three dimensions, by torch's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.errors import OpError
from propolis.ops.conv import WINDOW
from propolis.ops.conv import Sizes
from propolis.ops.conv import conv_sizes
from propolis.ops.conv import spatial
from propolis.opspec.infer import expect
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from propolis.tensor import Tensor


_POOL = {
    **WINDOW,
    "stride": "elements between windows; the kernel's size when None.",
    "ceil_mode": "whether a last window may reach beyond the padding, if it begins before its end.",
}
_ADAPTIVE = {"size": "sizes of the result, one for each dimension or one for all."}
_EXACT = dict.fromkeys(PLAIN, EXACT)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_POOL)
def avg_pool2d(
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Meta:
    """
    The mean of each window.

    Args:
        x: (batch, channels, height, width), a float dtype; sums are in f32 or wider.
        padding: zeros on both sides, at most half the kernel.
        count_padding: whether padding counts as elements of a window; what lies beyond it
            never does.

    Returns:
        (batch, channels, height_out, width_out), dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: ``x`` is not of rank 4, an image is empty, or no window fits.
        OpError: an attribute is out of range.
    """
    return _pool("avg_pool2d", 2, x, kernel, stride, padding, 1, ceil=ceil_mode)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_POOL)
def avg_pool3d(
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Meta:
    """
    The mean of each window of three dimensions, as of videos.

    Args:
        x: (batch, channels, depth, height, width), a float dtype; sums are in f32 or wider.
        padding: zeros on both sides, at most half the kernel.
        count_padding: whether padding counts as elements of a window; what lies beyond it
            never does.

    Returns:
        (batch, channels, depth_out, height_out, width_out), dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: ``x`` is not of rank 5, a video is empty, or no window fits.
        OpError: an attribute is out of range.
    """
    return _pool("avg_pool3d", 3, x, kernel, stride, padding, 1, ceil=ceil_mode)


@op({"x": PLAIN}, tolerance=_EXACT, shared=_POOL)
def max_pool2d(
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Meta:
    """
    The largest element of each window; NaN where any is; padding never wins.

    A dilated window may see padding alone: it gives -inf (f8e4m3: NaN), of integers the
    least value.

    Args:
        x: (batch, channels, height, width), any plain dtype.
        padding: elements on both sides, at most half the kernel.

    Returns:
        (batch, channels, height_out, width_out), dtype of ``x``.

    Raises:
        ShapeError: ``x`` is not of rank 4, an image is empty, or no window fits.
        OpError: an attribute is out of range.
    """
    return _pool("max_pool2d", 2, x, kernel, stride, padding, dilation, ceil=ceil_mode)


@op({"x": PLAIN}, tolerance=_EXACT, shared=_POOL)
def max_pool3d(
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Meta:
    """
    The largest element of each window of three dimensions; else as ``max_pool2d``.

    Args:
        x: (batch, channels, depth, height, width), any plain dtype.
        padding: elements on both sides, at most half the kernel.

    Returns:
        (batch, channels, depth_out, height_out, width_out), dtype of ``x``.

    Raises:
        ShapeError: ``x`` is not of rank 5, a video is empty, or no window fits.
        OpError: an attribute is out of range.
    """
    return _pool("max_pool3d", 3, x, kernel, stride, padding, dilation, ceil=ceil_mode)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_ADAPTIVE)
def adaptive_avg_pool2d(x: Tensor, /, size: Sizes) -> Meta:
    """
    The mean of each of ``size`` windows that cover the image.

    Window ``i`` is rows ``floor(i * height / size)`` up to ``ceil((i + 1) * height / size)``;
    so for columns.

    Args:
        x: (batch, channels, height, width), a float dtype; sums are in f32 or wider.

    Returns:
        (batch, channels, *size), dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: ``x`` is not of rank 4, or an image is empty.
        OpError: a size is not positive.
    """
    return _adaptive("adaptive_avg_pool2d", x, size)


@op({"x": PLAIN}, tolerance=_EXACT, shared=_ADAPTIVE)
def adaptive_max_pool2d(x: Tensor, /, size: Sizes) -> Meta:
    """
    The largest element of each window of ``adaptive_avg_pool2d``; NaN where any is.

    Args:
        x: (batch, channels, height, width), any plain dtype.

    Returns:
        (batch, channels, *size), dtype of ``x``.

    Raises:
        ShapeError: ``x`` is not of rank 4, or an image is empty.
        OpError: a size is not positive.
    """
    return _adaptive("adaptive_max_pool2d", x, size)


def _pool(
    name: str,
    rank: int,
    x: Tensor,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    *,
    ceil: bool,
) -> Meta:
    _expect_images(name, rank, x)
    window = spatial(name, "kernel", kernel, rank, least=1)
    pads = spatial(name, "padding", padding, rank, least=0)
    if any(2 * p > k for p, k in zip(pads, window, strict=True)):
        msg = f"{name}: padding {pads} must be at most half the kernel {window}"
        raise OpError(msg)
    step = window if stride is None else stride
    sizes = conv_sizes(name, x.shape[2:], window, step, pads, dilation, ceil=ceil)
    return (*x.shape[:2], *sizes), x.dtype


def _adaptive(name: str, x: Tensor, size: Sizes) -> Meta:
    _expect_images(name, 2, x)
    return (*x.shape[:2], *spatial(name, "size", size, 2, least=1)), x.dtype


def _expect_images(name: str, rank: int, x: Tensor) -> None:
    fits = len(x.shape) == rank + 2 and 0 not in x.shape[2:]
    sizes = ", ".join(("depth", "height", "width")[-rank:])
    expect(name, fits, f"x is (batch, channels, {sizes}) with elements", x=x)
