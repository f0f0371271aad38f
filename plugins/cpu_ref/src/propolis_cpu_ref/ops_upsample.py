"""Nearest and bilinear interpolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor


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
]
