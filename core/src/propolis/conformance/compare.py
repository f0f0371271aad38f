"""Results against the truth: how far off may they be, and where NaN and inf must be."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.ops._spec import EXACT


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.ops._spec import OpSpec

Array = np.ndarray[Any, Any]

# What sums of products may lose beside the tolerance: units of the accumulator's last
# place, times the sum of magnitudes.  f16 and narrower accumulate in f32.
_ROUNDINGS = 32
_MAX = {"f64": 1.797e308, "f32": 3.4028235e38, "f16": 65504.0, "bf16": 3.3895e38, "f8e4m3": 448.0}


def difference(
    spec: OpSpec,
    actual: Array,
    expected: Array,
    dtype: DType,
    scale: Array | None = None,
) -> tuple[str, str] | None:
    """
    Where a result is wrong: the check that says so and a sentence; None when it is right.

    Args:
        spec: whose tolerance holds.
        actual: the result, of ``dtype``.
        expected: f64, or exact integers.
        dtype: the output's.
        scale: the sum of magnitudes, for linear ops.
    """
    if actual.shape != expected.shape:
        return "contract", f"shape {actual.shape}, the truth has {expected.shape}"
    if not dtype.is_float:
        wrong = np.asarray(actual != expected.astype(actual.dtype))
        return _describe("values", wrong, actual, expected, "exactly")
    with np.errstate(all="ignore"):
        return _floats(spec, actual.astype(np.float64), expected, dtype, scale)


def _floats(
    spec: OpSpec,
    values: Array,
    expected: Array,
    dtype: DType,
    scale: Array | None,
) -> tuple[str, str] | None:
    expected = expected.astype(np.float64)
    off, allowed, odd = deviation(spec, values, expected, dtype, scale)
    if odd.any():
        return _describe("nan_inf", odd, values, expected, "rounded to " + dtype.name)
    tolerance = spec.tolerance.get(dtype, EXACT)
    said = f"within rtol={tolerance.rtol:g} atol={tolerance.atol:g}"
    return _describe("values", np.asarray(off > allowed), values, expected, said)


def deviation(
    spec: OpSpec,
    values: Array,
    expected: Array,
    dtype: DType,
    scale: Array | None = None,
) -> tuple[Array, Array, Array]:
    """
    How far each element of a floating-point result is off.

    Args:
        spec: whose tolerance holds.
        values: the result in f64.
        expected: f64.
        dtype: the output's.
        scale: the sum of magnitudes, for linear ops.

    Returns:
        The distance from the truth (0 where either is not finite), the distance that is
        allowed, and where NaN or an infinity is wrong or missing.
    """
    rounded = expected.astype(dtype.numpy).astype(np.float64)
    tolerance = spec.tolerance.get(dtype, EXACT)
    # At the end of the range an error within tolerance decides between finite and not.
    edge = np.abs(expected) >= _MAX[dtype.name] * (1 - tolerance.rtol)
    edge &= np.isfinite(expected) & (tolerance.rtol > 0)
    odd = ~(np.isfinite(rounded) & np.isfinite(values)) & ~edge
    same = (values == rounded) | (np.isnan(values) & np.isnan(rounded))
    # The nearest number of the dtype is right, however far from the truth that is.
    off = np.minimum(np.abs(values - expected), np.abs(values - rounded))
    allowed = tolerance.atol + tolerance.rtol * np.abs(expected)
    if scale is not None:
        ulp = 2.0**-53 if dtype is dtypes.f64 else 2.0**-24
        allowed = allowed + _ROUNDINGS * ulp * np.broadcast_to(scale, expected.shape)
    return np.asarray(np.where(odd | edge, 0.0, off)), allowed, np.asarray(odd & ~same)


def _describe(
    check: str, wrong: Array, actual: Array, expected: Array, said: str
) -> tuple[str, str] | None:
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    where = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.shape else ()
    return check, (
        f"{count} of {wrong.size} elements wrong; at {where}: {actual[where]!s}, the truth is "
        f"{expected[where]!s} ({said})"
    )
