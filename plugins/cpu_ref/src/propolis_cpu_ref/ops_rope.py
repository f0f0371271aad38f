"""rope."""

from __future__ import annotations

import numpy as np

from propolis import OpImpl
from propolis import Tensor
from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import unit_stride
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._indices import check_range
from propolis_cpu_ref.ops_cast import convert
from propolis_cpu_ref.ops_fill import kv_append


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


@ieee
def rope_kv_append(
    cache: Tensor,
    x: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate the keys, and write them and the values; nothing is written if a place is outside."""
    heads = x.shape[2] // 2
    given = Tensor.from_numpy(convert(x.array, x.dtype, dtypes.f32), x.device)
    new = np.array(given.array, order="C")
    keys = Tensor.from_numpy(new, x.device).narrow(2, 0, heads)
    rope(keys, given.narrow(2, 0, heads), positions, cos, sin, interleaved=interleaved)
    kept = convert(new, dtypes.f32, cache.dtype)
    kv_append(cache, Tensor.from_numpy(kept, x.device), slots)


OPS = [
    OpImpl(op="rope", fn=rope, dtypes={"x": FLOATS}),
    OpImpl(op="rope_kv_append", fn=rope_kv_append, dtypes={dtypes.f32, dtypes.f16, dtypes.bf16}),
]
