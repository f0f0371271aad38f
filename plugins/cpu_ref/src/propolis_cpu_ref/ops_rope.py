"""rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._indices import check_range


if TYPE_CHECKING:
    from propolis import Tensor


@ieee
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
    x1, x2 = values[..., first], values[..., second]
    y[..., first] = x1 * c - x2 * s
    y[..., second] = x1 * s + x2 * c
    y[..., rotated:] = values[..., rotated:]
    store(out, y)


OPS = [OpImpl(op="rope", fn=rope, dtypes={"x": FLOATS})]
