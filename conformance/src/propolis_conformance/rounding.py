"""Rounding to a dtype, once: numpy and ml_dtypes go through f32 on the way to some."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes


if TYPE_CHECKING:
    from propolis.dtypes import DType

Array = np.ndarray[Any, Any]


def rounded(values: Array, dtype: DType) -> Array:
    """
    The nearest numbers of a float dtype, ties to even, in f64.

    Args:
        values: f64, or integers.
        dtype: a float dtype.
    """
    with np.errstate(all="ignore"):
        if values.dtype.kind in "iu":
            if dtype is dtypes.f64:
                return values.astype(np.float64)
            values = _odd(values)
        values = np.asarray(values, np.float64)
        if dtype in (dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2):
            return np.asarray(_odd_f32(values).astype(dtype.numpy).astype(np.float64))
        return np.asarray(values.astype(dtype.numpy).astype(np.float64))


# Rounding to odd keeps on which side of every tie of a narrower dtype a number lies, so
# that rounding again rounds the number itself (Boldo, Melquiond 2005).


def _odd_f32(values: Array) -> Array:
    near = np.asarray(values.astype(np.float32))
    toward = np.where(values > near, np.inf, -np.inf).astype(np.float32)
    inexact = (near != values) & np.isfinite(near)
    even = near.view(np.int32) & 1 == 0
    return np.where(inexact & even, np.nextafter(near, toward), near)


def _odd(whole: Array) -> Array:
    def odd(n: int) -> float:
        near = float(n)
        even = not np.float64(near).view(np.int64) & 1
        if int(near) != n and even:
            return math.nextafter(near, math.inf if n > near else -math.inf)
        return near

    return np.array([odd(int(n)) for n in whole.flat], np.float64).reshape(whole.shape)
