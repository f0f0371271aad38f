"""cast."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import OpImpl
from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis_cpu_ref._compute import ieee


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Tensor


@ieee
def cast(out: Tensor, x: Tensor, dtype: DType, /) -> None:
    """Convert every element."""
    out.array[...] = convert(x.array, x.dtype, dtype)


def convert(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """``values`` in the numpy dtype of ``target``, by the rules of ``ops.cast``."""
    if source.is_float and target.is_integer:
        return _saturate(values, target)
    if source in (dtypes.f64, dtypes.i64, dtypes.i32, dtypes.u32) and target in (
        dtypes.bf16,
        dtypes.f8e4m3,
        dtypes.f8e5m2,
    ):
        return _round_to_odd(values).astype(target.numpy)
    return values.astype(target.numpy)


def as_scalar(value: float, dtype: np.dtype) -> Any:
    """A Python number in a numpy dtype, by the rules of ``ops.cast``."""
    kind = dtypes.from_numpy(dtype)
    if kind.is_integer and isinstance(value, int):
        info = np.iinfo(dtype)
        return dtype.type(min(max(value, info.min), info.max))
    return convert(np.array([value], np.float64), dtypes.f64, kind)[0]


def _saturate(values: np.ndarray, target: DType) -> np.ndarray:
    """Truncate toward zero; clamp to the integer range; NaN is 0."""
    wide = values.astype(np.float64)  # every float dtype fits exactly
    info = np.iinfo(target.numpy)
    # float(info.max) of i64 is one above it: >= catches both.
    above, below = wide >= float(info.max), wide <= float(info.min)
    inside = np.where(above | below | np.isnan(wide), 0, wide)
    result = inside.astype(target.numpy)
    result[above] = info.max
    result[below] = info.min
    return result


def _round_to_odd(values: np.ndarray) -> np.ndarray:
    """
    To f32 in a way that a later rounding to fewer bits rounds the true value.

    ml_dtypes goes through f32, so a plain conversion would round twice.  Rounding
    the first time to the odd neighbour keeps on which side of every tie the value
    lies (Boldo, Melquiond 2005).
    """
    near = np.asarray(values.astype(np.float32))
    # Compare in the source's own arithmetic: i64 does not fit f64.
    if values.dtype.kind == "f":
        back = near.astype(np.float64)
        inexact, above = back != values, back > values
    else:
        back = np.asarray(near.astype(np.float64))
        high = back >= 2.0**63
        whole = np.where(high, 0, back).astype(np.int64)
        signed = values.astype(np.int64)
        inexact, above = high | (whole != signed), high | (whole > signed)
    inexact &= np.isfinite(near)
    bits = near.view(np.int32)
    even = (bits & 1) == 0
    # The other f32 neighbour of the true value; magnitude grows with the bits.
    # The sign bit, because what is too small for f32 is a zero by now.
    toward_zero = above != np.signbit(near)
    step = np.where(toward_zero, -1, 1).astype(np.int32)
    return np.where(inexact & even, bits + step, bits).astype(np.int32).view(np.float32)


OPS = [OpImpl(op="cast", fn=cast, dtypes=PLAIN, in_place=True)]
