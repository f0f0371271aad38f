"""
Convolutions as products with windows (im2col), and their transposes.

One dimension is two with a height of 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.ops.conv import spatial
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._threads import share


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Tensor
    from propolis.ops.conv import Sizes

Pair = tuple[int, ...]

# Windows multiplied at a time: enough that reading the weights costs little, and few enough
# that their copy, which repeats each element for every tap, stays near the cores.
WINDOWS = 512

# Products of one call that are worth handing work over to threads.
SHARED = 1 << 22


@ieee
def conv1d(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> None:
    """Convolution over one dimension."""
    attributes = _flat(1, stride), _flat(0, padding), _flat(1, dilation)
    y = scratch(out)
    shift = None if bias is None else wide(bias)
    arrays = y[:, :, None], wide(x)[:, :, None], wide(w)[:, :, None], shift
    _conv(out.device.threads, *arrays, *attributes, groups)
    store(out, y)


@ieee
def conv2d(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    """Convolution over two dimensions."""
    attributes = _pair(stride), _pair(padding), _pair(dilation)
    y = scratch(out)
    shift = None if bias is None else wide(bias)
    _conv(out.device.threads, y, wide(x), wide(w), shift, *attributes, groups)
    store(out, y)


@ieee
def conv3d(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    """Convolution over three dimensions, one plane of the output at a time."""
    steps, pads, spread = (
        spatial("conv3d", "size", s, 3, least=0) for s in (stride, padding, dilation)
    )
    y, weights = scratch(out), wide(w)
    shift = None if bias is None else wide(bias)
    seen = windows(wide(x), w.shape[2:], steps, pads, spread)
    for plane in range(out.shape[2]):
        _products(out.device.threads, y[:, :, plane], seen[:, :, plane], weights, shift, groups)
    store(out, y)


@ieee
def conv_transpose1d(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> None:
    """The transpose of a convolution over one dimension."""
    size = (1, out.shape[2])
    attributes = _flat(1, stride), _flat(0, padding), _flat(1, dilation)
    y = _conv_transpose(wide(x)[:, :, None], wide(w)[:, :, None], size, *attributes, groups)
    _finish(out, y[:, :, 0], bias)


@ieee
def conv_transpose2d(
    out: Tensor,
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
) -> None:
    """The transpose of a convolution over two dimensions."""
    attributes = _pair(stride), _pair(padding), _pair(dilation)
    y = _conv_transpose(wide(x), wide(w), out.shape[2:], *attributes, groups)
    _finish(out, y, bias)


def im2col(
    out: Tensor,
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> None:
    """The windows, one a row."""
    # Moved as bits: the windows of a dtype that numpy has no name for (f8e5m2) it cannot show.
    bits = f"u{x.dtype.block_bytes}"
    shape = (_pair(kernel), _pair(stride), _pair(padding), _pair(dilation))
    seen = windows(x.array.view(bits), *shape)
    # (batch, channels, h, w, kernel_h, kernel_w) -> (batch, h w, channels kernel)
    out.array.view(bits)[...] = seen.transpose(0, 2, 3, 1, 4, 5).reshape(out.shape)


def windows(
    x: np.ndarray,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    fill: float = 0,
) -> np.ndarray:
    """
    Every window of an image, or of a video, as a view of its padded copy.

    Args:
        x: (batch, channels, height, width), or with a depth before the height.
        kernel: taps of a window.
        stride: elements between windows.
        padding: elements added on both sides.
        dilation: elements between taps.
        fill: what is added.

    Returns:
        (batch, channels, height_out, width_out, kernel_h, kernel_w), or with both depths.
    """
    if any(padding):
        around = ((0, 0), (0, 0), *((n, n) for n in padding))
        x = np.pad(x, around, constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    axes = tuple(range(2, 2 + len(kernel)))
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    return seen[:, :, *(slice(None, None, step) for step in (*stride, *dilation))]


def _conv(
    threads: int,
    out: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> None:
    _products(threads, out, windows(x, w.shape[2:], stride, padding, dilation), w, bias, groups)


def _products(
    threads: int,
    out: np.ndarray,
    seen: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    groups: int,
) -> None:
    """
    The windows of an image times the weights, some rows at a time, for all channels.

    Args:
        threads: how many may run at once.
        out: (batch, out_channels, height, width).
        seen: (batch, channels, height, width, *kernel).
        w: (out_channels, channels / groups, *kernel).
        bias: (out_channels,), or None.
        groups: of channels.
    """
    batch, channels, height, width = seen.shape[:4]
    taps = channels // groups * math.prod(w.shape[2:])
    weights = w.reshape(groups, w.shape[0] // groups, taps)
    shift = None if bias is None else bias.reshape(groups, weights.shape[1], 1)
    # (batch, groups, channels, *kernel, height, width), as the weights lie.
    grouped = seen.reshape(batch, groups, channels // groups, *seen.shape[2:])
    grouped = grouped.transpose(0, 1, 2, *range(5, grouped.ndim), 3, 4)
    answers = out.reshape(batch, groups, weights.shape[1], height * width)
    step = max(1, WINDOWS // width)
    strips = [
        (b, g, row, min(row + step, height))
        for b in range(batch)
        for row in range(0, height, step)
        for g in range(groups)
    ]

    def work(some: Iterator[tuple[int, int, int, int]]) -> None:
        for b, g, start, stop in some:
            columns = grouped[b, g, ..., start:stop, :].reshape(taps, (stop - start) * width)
            part = answers[b, g, :, start * width : stop * width]
            np.matmul(weights[g], columns, out=part)
            if shift is not None:
                part += shift[g]

    share(threads if out.size * taps >= SHARED else 1, strips, work)


def _conv_transpose(
    x: np.ndarray,
    w: np.ndarray,
    size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> np.ndarray:
    batch, channels, height, width = x.shape
    per_group, taps = channels // groups, w.shape[2:]
    out_channels = w.shape[1] * groups
    # What every input element adds to every tap of its window: one product.
    grouped = x.reshape(batch, groups, per_group, height * width)
    columns = w.shape[1] * taps[0] * taps[1]
    weights = w.reshape(groups, per_group, columns).transpose(0, 2, 1)
    shares = np.matmul(weights, grouped).reshape(batch, out_channels, *taps, height, width)
    padded = np.zeros(
        (batch, out_channels, *(n + 2 * p for n, p in zip(size, padding, strict=True))), x.dtype
    )
    for i in range(taps[0]):
        for j in range(taps[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + (height - 1) * stride[0] + 1, stride[0])
            across = slice(left, left + (width - 1) * stride[1] + 1, stride[1])
            padded[:, :, rows, across] += shares[:, :, i, j]
    return padded[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]


def _finish(out: Tensor, y: np.ndarray, bias: Tensor | None) -> None:
    if bias is not None:
        y = y + wide(bias).reshape(1, -1, *(1 for _ in out.shape[2:]))
    store(out, y)


def _pair(sizes: Sizes) -> Pair:
    return spatial("conv", "size", sizes, 2, least=0)


def _flat(height: int, sizes: Sizes) -> Pair:
    """An attribute of one dimension as one of two."""
    return height, *spatial("conv", "size", sizes, 1, least=0)


OPS = [
    OpImpl(op="conv1d", fn=conv1d, dtypes=FLOATS),
    OpImpl(op="conv2d", fn=conv2d, dtypes=FLOATS),
    OpImpl(op="conv3d", fn=conv3d, dtypes=FLOATS),
    OpImpl(op="conv_transpose1d", fn=conv_transpose1d, dtypes=FLOATS),
    OpImpl(op="conv_transpose2d", fn=conv_transpose2d, dtypes=FLOATS),
    OpImpl(op="im2col", fn=im2col, dtypes=PLAIN),
]
