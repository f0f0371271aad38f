"""Pooling: means and largest elements of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.ops.conv import spatial
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref.ops_conv import windows


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor
    from propolis.ops.conv import Sizes

Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _avg_pool(name: str) -> Callable[..., None]:
    @ieee
    def run(
        out: Tensor,
        x: Tensor,
        /,
        kernel: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_padding: bool = True,
    ) -> None:
        del ceil_mode  # the output has its shape
        values = wide(x)
        taps, step, pads, spread = _geometry(x, kernel, stride, padding, 1)
        inside = np.ones((1, 1, *x.shape[2:]), values.dtype)
        counted = np.pad(inside, [(0, 0), (0, 0), *((p, p) for p in pads)], constant_values=1)
        ones, around = (counted, (0,) * len(pads)) if count_padding else (inside, pads)
        total = _seen(out, values, (taps, step, pads, spread), 0).sum(axis=_tap_axes(x))
        count = _seen(out, ones, (taps, step, around, spread), 0).sum(axis=_tap_axes(x))
        store(out, total / count)

    return _named(run, name, "The mean of each window.")


def _max_pool(name: str) -> Callable[..., None]:
    @ieee
    def run(
        out: Tensor,
        x: Tensor,
        /,
        kernel: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> None:
        del ceil_mode  # the output has its shape
        geometry = _geometry(x, kernel, stride, padding, dilation)
        store(out, _seen(out, _ordered(x), geometry, _least(x)).max(axis=_tap_axes(x)))

    return _named(run, name, "The largest of each window; padding is the dtype's least value.")


@ieee
def adaptive_avg_pool2d(out: Tensor, x: Tensor, /, size: Sizes) -> None:
    """The mean of each of as many windows."""
    del size  # the output has it
    values = wide(x)
    for axis in (2, 3):
        bounds = _bounds(values.shape[axis], out.shape[axis])
        values = np.stack([values.take(range(*b), axis).mean(axis) for b in bounds], axis)
    store(out, values)


@ieee
def adaptive_max_pool2d(out: Tensor, x: Tensor, /, size: Sizes) -> None:
    """The largest of each of as many windows."""
    del size  # the output has it
    values = _ordered(x)
    for axis in (2, 3):
        bounds = _bounds(values.shape[axis], out.shape[axis])
        values = np.stack([values.take(range(*b), axis).max(axis) for b in bounds], axis)
    store(out, values)


def _bounds(length: int, count: int) -> list[tuple[int, int]]:
    """Where each of ``count`` windows over ``length`` elements begins and ends."""
    return [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]


def _ordered(x: Tensor) -> np.ndarray:
    """Integers as they are, floats in f32 or f64 (exact), whose order numpy knows."""
    return x.array if x.dtype.is_integer else wide(x)


def _least(x: Tensor) -> float:
    return np.iinfo(x.dtype.numpy).min if x.dtype.is_integer else -np.inf


def _geometry(
    x: Tensor, kernel: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes
) -> Geometry:
    rank = len(x.shape) - 2
    taps = spatial("pool", "kernel", kernel, rank, least=1)
    step = taps if stride is None else spatial("pool", "stride", stride, rank, least=1)
    pads = spatial("pool", "padding", padding, rank, least=0)
    return taps, step, pads, spatial("pool", "dilation", dilation, rank, least=1)


def _seen(out: Tensor, x: np.ndarray, geometry: Geometry, fill: float) -> np.ndarray:
    """The windows of every output element, the last of which may reach beyond the padding."""
    taps, step, pads, spread = geometry
    places = zip(out.shape[2:], x.shape[2:], *geometry, strict=True)
    beyond = [max(0, (m - 1) * s + d * (k - 1) + 1 - n - 2 * p) for m, n, k, s, p, d in places]
    if any(beyond):
        x = np.pad(
            x,
            [(0, 0), (0, 0), *((p, p + b) for p, b in zip(pads, beyond, strict=True))],
            constant_values=fill,
        )
        pads = (0,) * len(pads)
    return windows(x, taps, step, pads, spread, fill)


def _tap_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(len(x.shape), 2 * len(x.shape) - 2))


def _named(run: Callable[..., None], name: str, meaning: str) -> Callable[..., None]:
    run.__name__ = run.__qualname__ = name
    run.__doc__ = meaning
    return run


OPS = [
    OpImpl(op="avg_pool2d", fn=_avg_pool("avg_pool2d"), dtypes=FLOATS),
    OpImpl(op="avg_pool3d", fn=_avg_pool("avg_pool3d"), dtypes=FLOATS),
    OpImpl(op="max_pool2d", fn=_max_pool("max_pool2d"), dtypes=PLAIN),
    OpImpl(op="max_pool3d", fn=_max_pool("max_pool3d"), dtypes=PLAIN),
    OpImpl(op="adaptive_avg_pool2d", fn=adaptive_avg_pool2d, dtypes=FLOATS),
    OpImpl(op="adaptive_max_pool2d", fn=adaptive_max_pool2d, dtypes=PLAIN),
]
