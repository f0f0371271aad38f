"""avg_pool2d, max_pool2d."""

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
    from propolis import Tensor
    from propolis.ops.conv import Sizes


@ieee
def avg_pool2d(
    out: Tensor,
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    count_padding: bool = True,
) -> None:
    """The mean of each window."""
    values = wide(x)
    taps, step, pads = _geometry(kernel, stride, padding)
    total = windows(values, taps, step, pads, (1, 1)).sum(axis=(4, 5))
    if count_padding:
        store(out, total / values.dtype.type(taps[0] * taps[1]))
        return
    ones = np.ones((1, 1, *x.shape[2:]), values.dtype)
    store(out, total / windows(ones, taps, step, pads, (1, 1)).sum(axis=(4, 5)))


@ieee
def max_pool2d(
    out: Tensor,
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> None:
    """The largest of each window; padding is the dtype's least value."""
    values = x.array if x.dtype.is_integer else wide(x)
    least = np.iinfo(values.dtype).min if x.dtype.is_integer else -np.inf
    taps, step, pads = _geometry(kernel, stride, padding)
    spread = spatial("max_pool2d", "dilation", dilation, 2, least=1)
    store(out, windows(values, taps, step, pads, spread, least).max(axis=(4, 5)))


def _geometry(
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    taps = spatial("pool", "kernel", kernel, 2, least=1)
    step = taps if stride is None else spatial("pool", "stride", stride, 2, least=1)
    return taps, step, spatial("pool", "padding", padding, 2, least=0)


OPS = [
    OpImpl(op="avg_pool2d", fn=avg_pool2d, dtypes=FLOATS),
    OpImpl(op="max_pool2d", fn=max_pool2d, dtypes=PLAIN),
]
