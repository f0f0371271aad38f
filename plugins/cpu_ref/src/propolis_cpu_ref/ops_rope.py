"""rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._indices import check_range
from propolis_cpu_ref._threads import grain
from propolis_cpu_ref._threads import over_rows


if TYPE_CHECKING:
    from propolis import Tensor


def rope(
    out: Tensor,
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate each pair of elements by the angle of its position."""
    check_range("rope", "position", positions.array, cos.shape[0], "the tables")
    # (batch, tokens, 1, pairs): the same angles for every head.
    c, s = (table.array[positions.array][:, :, None, :] for table in (cos, sin))
    values, y = wide(x), scratch(out)
    rotated = 2 * cos.shape[1]
    if interleaved:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    else:
        first, second = slice(0, rotated // 2), slice(rotated // 2, rotated)

    @ieee
    def work(tokens: slice) -> None:
        x1, x2 = values[:, tokens, :, first], values[:, tokens, :, second]
        y1, y2 = y[:, tokens, :, first], y[:, tokens, :, second]
        np.multiply(x1, c[:, tokens], out=y1)
        y1 -= x2 * s[:, tokens]
        np.multiply(x1, s[:, tokens], out=y2)
        y2 += x2 * c[:, tokens]

    over_rows(out.device.threads, x.shape[1], grain(x.shape[2] * x.shape[3]), work)
    if rotated < x.shape[3]:
        y[..., rotated:] = values[..., rotated:]
    store(out, y)


OPS = [OpImpl(op="rope", fn=rope, dtypes={"x": FLOATS})]
