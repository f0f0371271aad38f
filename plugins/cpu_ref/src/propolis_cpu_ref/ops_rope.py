"""rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import unit_stride
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
    """Rotate each pair of elements by its angle: multiply complex numbers."""
    check_range("rope", "position", positions.array, cos.shape[0], "the tables")
    values, y = wide(x), scratch(out)
    half = cos.shape[1]
    at = positions.array
    # (batch, tokens, 1, pairs): the same angles for every head.
    turn = np.empty((*at.shape, 1, half), np.result_type(y.dtype, np.complex64))
    turn.real[:, :, 0], turn.imag[:, :, 0] = cos.array[at], sin.array[at]
    rotated = slice(0, 2 * half)
    if interleaved:
        # Neighbours in memory are the real and imaginary part of one number.
        pairs = unit_stride(values[..., rotated]).view(turn.dtype)
        np.multiply(pairs, turn, out=y[..., rotated].view(turn.dtype))
    else:
        first, second = slice(0, half), slice(half, 2 * half)
        pairs = np.empty((*values.shape[:3], half), turn.dtype)
        pairs.real, pairs.imag = values[..., first], values[..., second]
        pairs *= turn
        y[..., first], y[..., second] = pairs.real, pairs.imag
    y[..., 2 * half :] = values[..., 2 * half :]
    store(out, y)


OPS = [OpImpl(op="rope", fn=rope, dtypes={"x": FLOATS})]
