"""Python numbers as kernels take them."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from propolis import dtypes


if TYPE_CHECKING:
    from propolis.dtypes import DType


def letter(dtype: DType) -> str:
    """
    How a scalar of an op on that dtype is handed over: ``Scalar`` of unary_scalars.hip.

    Floats in what they are computed in, integers as i64.
    """
    if dtype.is_integer:
        return "q"
    return "d" if dtype is dtypes.f64 else "f"


def scalar(value: float, dtype: DType) -> float:
    """A number for the letter of that dtype: floats rounded, integers truncated and saturated."""
    if dtype.is_integer:
        return whole(value, dtype)
    return value if dtype is dtypes.f64 else ctypes.c_float(value).value


def whole(value: float, dtype: DType) -> int:
    """Truncated toward zero and moved into the integer dtype's range; NaN is 0."""
    if math.isnan(value):
        return 0
    limits = np.iinfo(dtype.numpy)
    if value >= limits.max:
        return int(limits.max)
    if value <= limits.min:
        return int(limits.min)
    return int(value)


@lru_cache(maxsize=1024)
def bits(value: float, dtype: DType) -> int:
    """
    The bits of a number as an element of that dtype.

    >>> hex(bits(1.0, dtypes.bf16))
    '0x3f80'
    """
    if dtype.is_integer:
        return whole(value, dtype) & ((1 << 8 * dtype.block_bytes) - 1)
    with np.errstate(all="ignore"):
        element = np.array(value, np.float64).astype(dtype.numpy)
    return int.from_bytes(element.tobytes(), "little")
