"""Pooling over windows of two dimensions, by torch's conventions."""

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


_POOL = {**WINDOW, "stride": "elements between windows; the kernel's size when None."}


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_POOL)
def avg_pool2d(
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    count_padding: bool = True,
) -> Meta:
    """
    The mean of each window.

    Args:
        x: (batch, channels, height, width), a float dtype; sums are in f32 or wider.
        padding: zeros on both sides, at most half the kernel.
        count_padding: whether padding counts as elements of a window.

    Returns:
        (batch, channels, height_out, width_out), dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: ``x`` is not of rank 4, an image is empty, or no window fits.
        OpError: an attribute is out of range.
    """
    return _pool("avg_pool2d", x, kernel, stride, padding, 1)


@op({"x": PLAIN}, tolerance=dict.fromkeys(PLAIN, EXACT), shared=_POOL)
def max_pool2d(
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
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
    return _pool("max_pool2d", x, kernel, stride, padding, dilation)


def _pool(
    name: str,
    x: Tensor,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
) -> Meta:
    fits = len(x.shape) == 4 and 0 not in x.shape[2:]
    expect(name, fits, "x is (batch, channels, height, width) with elements", x=x)
    window = spatial(name, "kernel", kernel, 2, least=1)
    pads = spatial(name, "padding", padding, 2, least=0)
    if any(2 * p > k for p, k in zip(pads, window, strict=True)):
        msg = f"{name}: padding {pads} must be at most half the kernel {window}"
        raise OpError(msg)
    step = window if stride is None else stride
    return (*x.shape[:2], *conv_sizes(name, x.shape[2:], window, step, pads, dilation)), x.dtype
