"""
Convolutions (cross-correlations, as everywhere in the field), by torch's conventions.

``stride``, ``padding`` and ``dilation`` are one number for all spatial dimensions or
one for each; padding is with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.errors import OpError
from propolis.errors import ShapeError
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from propolis.layout import Shape
    from propolis.tensor import Tensor


Sizes = int | tuple[int, ...]
_FARTHEST = 1 << 31  # what a step of windows stays below

WINDOW: Final = {
    "kernel": "sizes of a window, such as (height, width).",
    "stride": "elements between windows.",
    "padding": "zeros on both sides.",
    "dilation": "elements between the taps of a window.",
}
"""What the attributes of ops with windows mean."""

_CHANNELS: Final = {
    "bias": "(out_channels,), same dtype, or None.",
    "groups": "divides the channels of input and output.",
}
_CONV: Final = {**WINDOW, **_CHANNELS}
_TRANSPOSE: Final = {
    "stride": "output elements between input elements.",
    "padding": "elements cut from both sides of the output.",
    "dilation": "elements between the taps of a kernel.",
    **_CHANNELS,
}


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_CONV)
def conv1d(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Meta:
    """
    Convolution over one dimension.

    Args:
        x: (batch, in_channels, length), a float dtype; sums are in f32 or wider.
        w: (out_channels, in_channels / groups, kernel), same dtype.

    Returns:
        (batch, out_channels, length_out), dtype of ``x``, with
        ``length_out = (length + 2 padding - dilation (kernel - 1) - 1) // stride + 1``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together, or the kernel exceeds the padded input.
        OpError: an attribute is out of range.
    """
    return _conv("conv1d", 1, x, w, bias, (stride, padding, dilation), groups)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_CONV)
def conv2d(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Meta:
    """
    Convolution over two dimensions.

    Args:
        x: (batch, in_channels, height, width), a float dtype; sums are in f32 or wider.
        w: (out_channels, in_channels / groups, kernel_h, kernel_w), same dtype.

    Returns:
        (batch, out_channels, height_out, width_out), dtype of ``x``; sizes as in
        ``conv1d``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together, or the kernel exceeds the padded input.
        OpError: an attribute is out of range.
    """
    return _conv("conv2d", 2, x, w, bias, (stride, padding, dilation), groups)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_CONV)
def conv3d(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Meta:
    """
    Convolution over three dimensions, as of videos.

    Args:
        x: (batch, in_channels, depth, height, width), a float dtype; sums are in f32 or wider.
        w: (out_channels, in_channels / groups, kernel_d, kernel_h, kernel_w), same dtype.

    Returns:
        (batch, out_channels, depth_out, height_out, width_out), dtype of ``x``; sizes as in
        ``conv1d``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together, or the kernel exceeds the padded input.
        OpError: an attribute is out of range.
    """
    return _conv("conv3d", 3, x, w, bias, (stride, padding, dilation), groups)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_TRANSPOSE)
def conv_transpose1d(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Meta:
    """
    The transpose of ``conv1d``: each input element adds its kernel to the output.

    Args:
        x: (batch, in_channels, length), a float dtype; sums are in f32 or wider.
        w: (in_channels, out_channels / groups, kernel), same dtype.
        output_padding: elements added at its end, fewer than stride or dilation.

    Returns:
        (batch, out_channels, length_out), dtype of ``x``, with ``length_out = (length -
        1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together, or nothing is left after cutting.
        OpError: an attribute is out of range.
    """
    attributes = (stride, padding, dilation, output_padding)
    return _conv_transpose("conv_transpose1d", 1, x, w, bias, attributes, groups)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_TRANSPOSE)
def conv_transpose2d(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Meta:
    """
    The transpose of ``conv2d``: each input element adds its kernel to the output.

    Args:
        x: (batch, in_channels, height, width), a float dtype; sums are in f32 or wider.
        w: (in_channels, out_channels / groups, kernel_h, kernel_w), same dtype.
        output_padding: elements added at its ends, fewer than stride or dilation.

    Returns:
        (batch, out_channels, height_out, width_out), dtype of ``x``; sizes as in
        ``conv_transpose1d``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together, or nothing is left after cutting.
        OpError: an attribute is out of range.
    """
    attributes = (stride, padding, dilation, output_padding)
    return _conv_transpose("conv_transpose2d", 2, x, w, bias, attributes, groups)


@op({"x": PLAIN}, tolerance=dict.fromkeys(PLAIN, EXACT), shared=WINDOW)
def im2col(
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Meta:
    """
    The windows that ``conv2d`` multiplies, one a row.

    Args:
        x: (batch, channels, height, width), any plain dtype.

    Returns:
        (batch, height_out * width_out, channels * kernel_h * kernel_w), dtype of ``x``.

    Raises:
        ShapeError: ``x`` is not of rank 4, or the kernel exceeds the padded input.
        OpError: an attribute is out of range.
    """
    expect("im2col", len(x.shape) == 4, "x is (batch, channels, height, width)", x=x)
    window = spatial("im2col", "kernel", kernel, 2, least=1)
    h, w = conv_sizes("im2col", x.shape[2:], window, stride, padding, dilation)
    return (x.shape[0], h * w, x.shape[1] * window[0] * window[1]), x.dtype


def spatial(name: str, what: str, value: Sizes, rank: int, *, least: int) -> Shape:
    """
    An attribute as one number for each spatial dimension.

    Raises:
        OpError: it has another count of numbers, or one is below ``least`` or too large.
    """
    whole = integers(name, what, value)
    sizes = (whole,) * rank if isinstance(whole, int) else tuple(whole)
    if len(sizes) != rank or not all(least <= n < _FARTHEST for n in sizes):
        msg = f"{name}: {what} {value} must be {rank} numbers (or one for all) of at least {least}"
        raise OpError(msg if all(n < _FARTHEST for n in sizes) else f"{msg} and below 2**31")
    return sizes


def conv_sizes(
    name: str,
    sizes: Shape,
    kernel: Shape,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    *,
    ceil: bool = False,
) -> Shape:
    """
    The spatial sizes after windows of ``kernel`` taps slide over ``sizes``.

    With ``ceil`` a last window may reach beyond the padding, if it begins before its end.

    Raises:
        OpError: an attribute is out of range.
        ShapeError: no window fits.
    """
    # Before they are looked up: 1.0 is the same key as 1.
    named = {"stride": stride, "padding": padding, "dilation": dilation}
    each = (integers(name, what, value) for what, value in named.items())
    return _conv_sizes(name, sizes, kernel, *each, ceil)


@lru_cache(maxsize=4096)
def _conv_sizes(
    name: str,
    sizes: Shape,
    kernel: Shape,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil: bool,
) -> Shape:
    rank = len(sizes)
    strides = spatial(name, "stride", stride, rank, least=1)
    pads = spatial(name, "padding", padding, rank, least=0)
    dilations = spatial(name, "dilation", dilation, rank, least=1)
    out = tuple(
        _windows_on(n, k, s, p, d, ceil=ceil)
        for n, k, s, p, d in zip(sizes, kernel, strides, pads, dilations, strict=True)
    )
    if any(n <= 0 for n in out):
        msg = (
            f"{name}: a kernel of {kernel} with dilation {dilations} exceeds the input {sizes} "
            f"padded by {pads}"
        )
        raise ShapeError(msg)
    return out


def hashable(value: Sizes) -> Sizes:
    """Lists are taken where tuples are asked for."""
    return value if isinstance(value, int) else tuple(value)


def integers(name: str, what: str, value: Any) -> Sizes:
    """
    An attribute as an int or a tuple of them; lists are taken too.

    Raises:
        OpError: it is something else.  NumPy's integers are: they are refused here, with words,
            as files and C functions that plugins give them to refuse them.
    """
    if isinstance(value, int):
        return value
    sizes = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(n, int) for n in sizes):
        kinds = ", ".join(sorted({type(n).__name__ for n in sizes}))
        msg = f"{name}: {what} {value} must be of int, not of {kinds}"
        raise OpError(msg)
    return sizes


def _windows_on(size: int, kernel: int, stride: int, pad: int, dilation: int, *, ceil: bool) -> int:
    """How many windows there are along a dimension."""
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil:
        return room // stride + 1
    last = -(-room // stride)
    return last + (last * stride < size + pad)


def conv_transpose_sizes(
    name: str,
    sizes: Shape,
    kernel: Shape,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    output_padding: Sizes,
) -> Shape:
    """
    The spatial sizes of a transposed convolution.

    Raises:
        OpError: an attribute is out of range.
        ShapeError: nothing is left.
    """
    rank = len(sizes)
    strides = spatial(name, "stride", stride, rank, least=1)
    pads = spatial(name, "padding", padding, rank, least=0)
    dilations = spatial(name, "dilation", dilation, rank, least=1)
    extra = spatial(name, "output_padding", output_padding, rank, least=0)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        msg = (
            f"{name}: output_padding {extra} must be below stride {strides} or dilation {dilations}"
        )
        raise OpError(msg)
    out = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, k, s, p, d, e in zip(sizes, kernel, strides, pads, dilations, extra, strict=True)
    )
    if 0 in sizes or any(n <= 0 for n in out):
        msg = f"{name}: padding {pads} cuts everything of an output of the input {sizes}"
        raise ShapeError(msg)
    return out


def _conv(
    name: str,
    rank: int,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    attributes: tuple[Sizes, Sizes, Sizes],
    groups: int,
) -> Meta:
    same_dtype(name, x=x, w=w)
    _check_groups(name, groups)
    fits = (
        len(x.shape) == len(w.shape) == rank + 2
        and x.shape[1] == w.shape[1] * groups
        and w.shape[0] % groups == 0
        and 0 not in w.shape[2:]
    )
    rule = f"x is (batch, in, sizes), w is (out, in / groups, kernel), groups {groups}"
    expect(name, fits, rule, x=x, w=w)
    _check_bias(name, x, bias, w.shape[0])
    sizes = conv_sizes(name, x.shape[2:], w.shape[2:], *attributes)
    return (x.shape[0], w.shape[0], *sizes), x.dtype


def _conv_transpose(
    name: str,
    rank: int,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    attributes: tuple[Sizes, Sizes, Sizes, Sizes],
    groups: int,
) -> Meta:
    same_dtype(name, x=x, w=w)
    _check_groups(name, groups)
    fits = (
        len(x.shape) == len(w.shape) == rank + 2
        and x.shape[1] == w.shape[0]
        and w.shape[0] % groups == 0
        and 0 not in w.shape[2:]
    )
    rule = f"x is (batch, in, sizes), w is (in, out / groups, kernel), groups {groups}"
    expect(name, fits, rule, x=x, w=w)
    channels = w.shape[1] * groups
    _check_bias(name, x, bias, channels)
    sizes = conv_transpose_sizes(name, x.shape[2:], w.shape[2:], *attributes)
    return (x.shape[0], channels, *sizes), x.dtype


def _check_groups(name: str, groups: Any) -> None:
    if not isinstance(groups, int) or groups < 1:
        msg = f"{name}: groups {groups!r} must be an int of at least 1"
        raise OpError(msg)


def _check_bias(name: str, x: Tensor, bias: Tensor | None, channels: int) -> None:
    if bias is not None:
        same_dtype(name, x=x, bias=bias)
        expect(name, bias.shape == (channels,), f"bias is ({channels},)", bias=bias)
