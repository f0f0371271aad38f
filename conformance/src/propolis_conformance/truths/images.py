"""Truths of convolutions, pooling and interpolation: one tap, or one window, at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping

Array = np.ndarray[Any, Any]
Sizes = int | tuple[int, ...]


def _pair(n: Sizes) -> tuple[int, int]:
    first, second = (n, n) if isinstance(n, int) else n
    return first, second


def _padded(x: Array, padding: Sizes, value: float) -> Array:
    (top, left) = _pair(padding)
    around = ((0, 0), (0, 0), (top, top), (left, left))
    return np.pad(x, around, constant_values=value)


def _taps(
    x: Array, kernel: Sizes, stride: Sizes, dilation: Sizes
) -> Iterator[tuple[int, int, Array]]:
    """For each tap of the kernel its place, and what it sees of a padded image."""
    (kh, kw), (sh, sw), (dh, dw) = map(_pair, (kernel, stride, dilation))
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


def _channels(weights: Array, x: Array) -> Array:
    """Channels of each group as products: (g, o, c) times (b, g, c, h, w)."""
    columns = x.reshape(*x.shape[:3], x.shape[3] * x.shape[4])
    return (weights @ columns).reshape(*x.shape[:2], weights.shape[1], *x.shape[3:])


def _conv2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    total: Any = 0
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for i, j, seen in _taps(_padded(x, padding, 0), w.shape[2:], stride, dilation):
        split = seen.reshape(len(x), groups, w.shape[1], *seen.shape[2:])
        total = total + _channels(weights[..., i, j], split)
    y = total.reshape(len(x), w.shape[0], *total.shape[3:])
    return np.asarray(y if bias is None else y + bias[:, None, None])


def _conv_transpose2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    kernel = w.shape[2:]
    each = zip(*map(_pair, (x.shape[2:], kernel, stride, dilation, output_padding)), strict=True)
    whole = [(n - 1) * s + d * (k - 1) + 1 + extra for n, k, s, d, extra in each]
    y = np.zeros((len(x), groups, w.shape[1], *whole))
    split = x.reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    (sh, sw), (dh, dw), (ph, pw) = map(_pair, (stride, dilation, padding))
    for i, j in np.ndindex(*kernel):
        rows = slice(i * dh, i * dh + sh * (x.shape[2] - 1) + 1, sh)
        columns = slice(j * dw, j * dw + sw * (x.shape[3] - 1) + 1, sw)
        y[..., rows, columns] += _channels(weights[..., i, j].transpose(0, 2, 1), split)
    y = y[..., ph : whole[0] - ph, pw : whole[1] - pw]
    y = y.reshape(len(x), groups * w.shape[1], *y.shape[3:])
    return np.asarray(y if bias is None else y + bias[:, None, None])


def _flat(function: Callable[..., Array]) -> Callable[..., Array]:
    """The same of images of one row."""
    neutral = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}

    def of_rows(x: Array, w: Array, bias: Array | None = None, **attributes: Any) -> Array:
        pairs = {k: (neutral[k], n) if k in neutral else n for k, n in attributes.items()}
        return function(x[:, :, None], w[:, :, None], bias, **pairs)[:, :, 0]

    return of_rows


def _im2col(
    x: Array, kernel: Sizes, *, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1
) -> Array:
    seen = [s for _, _, s in _taps(_padded(x, padding, 0), kernel, stride, dilation)]
    windows = np.stack(seen, 2)  # (batch, channels, taps, rows, columns)
    b, c, taps, rows, columns = windows.shape
    return windows.transpose(0, 3, 4, 1, 2).reshape(b, rows * columns, c * taps)


def _avg_pool2d(
    x: Array,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    count_padding: bool = True,
) -> Array:
    step = kernel if stride is None else stride
    total = sum(s for _, _, s in _taps(_padded(x, padding, 0), kernel, step, 1))
    inside = _padded(np.ones_like(x), padding, 1 if count_padding else 0)
    return np.asarray(total / sum(s for _, _, s in _taps(inside, kernel, step, 1)))


def _max_pool2d(
    x: Array,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Array:
    step = kernel if stride is None else stride
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    seen = [s for _, _, s in _taps(_padded(x, padding, least), kernel, step, dilation)]
    return np.asarray(np.max(np.stack(seen), 0))


def _nearest(x: Array, size: Sizes) -> Array:
    sizes = (size,) if isinstance(size, int) else size
    for dim, n in enumerate(sizes, 2):
        x = np.take(x, [i * x.shape[dim] // n for i in range(n)], dim)
    return x


def _bilinear(x: Array, size: tuple[int, int], *, align_corners: bool = False) -> Array:
    for dim, n in enumerate(size, 2):
        length = x.shape[dim]
        i = np.arange(n)
        if align_corners:
            source = i * (length - 1) / max(n - 1, 1)
        else:
            source = np.maximum(0, (i + 0.5) * length / n - 0.5)
        low = np.minimum(np.floor(source).astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        share = (source - low).reshape(-1, *(1,) * (3 - dim))
        x = np.take(x, low, dim) * (1 - share) + np.take(x, high, dim) * share
    return x


FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    "conv1d": _flat(_conv2d),
    "conv2d": _conv2d,
    "conv_transpose1d": _flat(_conv_transpose2d),
    "conv_transpose2d": _conv_transpose2d,
    "im2col": _im2col,
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": _max_pool2d,
    "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest,
    "upsample_bilinear2d": _bilinear,
}
