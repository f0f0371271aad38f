"""Nearest, bilinear and bicubic interpolation, and filters that widen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.ops.upsample import resize_size
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.upsample import Mode


def upsample_nearest1d(out: Tensor, x: Tensor, /, size: int) -> None:
    """Each element is the one it falls on."""
    out.array[...] = x.array[:, :, _nearest(x.shape[2], size)]


def upsample_nearest2d(out: Tensor, x: Tensor, /, size: tuple[int, int]) -> None:
    """Each element is the one it falls on."""
    rows, columns = (_nearest(n, m) for n, m in zip(x.shape[2:], size, strict=True))
    out.array[...] = x.array[:, :, rows[:, None], columns]


@ieee
def upsample_bilinear2d(
    out: Tensor,
    x: Tensor,
    /,
    size: tuple[int, int],
    *,
    align_corners: bool = False,
) -> None:
    """Blend rows, then columns."""
    values = wide(x)
    for axis, (n, m) in enumerate(zip(x.shape[2:], size, strict=True), start=2):
        low, high, share = _between(n, m, align_corners=align_corners)
        weight = share.astype(values.dtype).reshape(-1, *(1 for _ in range(3 - axis)))
        below, above = np.take(values, low, axis=axis), np.take(values, high, axis=axis)
        values = below * (1 - weight) + above * weight
    store(out, values)


@ieee
def resize2d(
    out: Tensor,
    x: Tensor,
    /,
    size: tuple[int, int] | None = None,
    *,
    mode: Mode = "bilinear",
    antialias: bool = False,
    align_corners: bool = False,
    scale: float | tuple[float, float] | None = None,
) -> None:
    """Filter rows, then columns."""
    size, scales = resize_size(x.shape, size, scale)
    values = wide(x)
    for axis, (n, m) in enumerate(zip(x.shape[2:], size, strict=True), start=2):
        ratio = n / m if scales is None else 1 / scales[axis - 2]
        if align_corners:
            ratio = (n - 1) / (m - 1) if m > 1 else 0.0
        if antialias:
            places, weights = _widened(n, m, ratio, mode)
        else:
            places, weights = _interpolating(n, m, ratio, mode, 0.0 if align_corners else 0.5)
        shape = (m, *(1 for _ in range(3 - axis)))
        values = sum(
            np.take(values, places[:, tap], axis=axis)
            * weights[:, tap].astype(values.dtype).reshape(shape)
            for tap in range(places.shape[1])
        )
    store(out, values)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel: 1 at 0, 0 at other whole numbers and from 2 on."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(0.0, 1 - np.abs(x)))


def _interpolating(
    source: int, target: int, ratio: float, mode: Mode, centre: float
) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights, each (target, taps), of the elements about each target's source."""
    where = (np.arange(target) + centre) * ratio - centre
    if mode == "bilinear":
        where = np.maximum(where, 0)
    first = np.floor(where)[:, None]
    places = first + (np.arange(2) if mode == "bilinear" else np.arange(-1, 3))
    off = where[:, None] - places
    weights = _triangle(off) if mode == "bilinear" else _cubic(off, -0.75)
    return np.clip(places, 0, source - 1).astype(np.int64), weights


def _widened(source: int, target: int, ratio: float, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
    """The same where each element of the source counts in some target element, as Pillow does."""
    wider = max(ratio, 1.0)
    reach = (1 if mode == "bilinear" else 2) * wider
    middle = (np.arange(target) + 0.5) * ratio
    first = np.maximum((middle - reach + 0.5).astype(np.int64), 0)
    end = np.minimum((middle + reach + 0.5).astype(np.int64), source)
    places = first[:, None] + np.arange(max(1, (end - first).max()))
    off = (places - middle[:, None] + 0.5) / wider
    weights = _triangle(off) if mode == "bilinear" else _cubic(off, -0.5)
    weights = np.where(places < end[:, None], weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    return np.minimum(places, source - 1), weights


def _nearest(source: int, target: int) -> np.ndarray:
    return np.arange(target) * source // target


def _between(
    source: int,
    target: int,
    *,
    align_corners: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two neighbours of each target element, and the share of the second; f64."""
    index = np.arange(target, dtype=np.float64)
    if align_corners:
        where = index * ((source - 1) / (target - 1)) if target > 1 else index * 0
    else:
        where = np.maximum((index + 0.5) * (source / target) - 0.5, 0)
    low = np.minimum(where.astype(np.int64), source - 1)
    return low, np.minimum(low + 1, source - 1), where - low


OPS = [
    OpImpl(op="upsample_nearest1d", fn=upsample_nearest1d, dtypes=PLAIN),
    OpImpl(op="upsample_nearest2d", fn=upsample_nearest2d, dtypes=PLAIN),
    OpImpl(op="upsample_bilinear2d", fn=upsample_bilinear2d, dtypes=FLOATS),
    OpImpl(op="resize2d", fn=resize2d, dtypes=FLOATS),
]
