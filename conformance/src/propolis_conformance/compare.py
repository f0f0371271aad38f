"""Results against the truth: how far off may they be, and where NaN and inf must be."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.opspec.spec import EXACT
from propolis_conformance.rounding import rounded


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.opspec.spec import OpSpec

Array = np.ndarray[Any, Any]

LARGEST: Final = {
    "f64": float(np.finfo(np.float64).max),
    "f32": float(np.finfo(np.float32).max),
    "f16": 65504.0,
    "bf16": float.fromhex("0x1.fep127"),
    "f8e4m3": 448.0,
    "f8e5m2": 57344.0,
}


def difference(
    spec: OpSpec,
    actual: Array,
    expected: Array,
    dtype: DType,
    magnitude: Array | None = None,
    *,
    exact: bool = True,
    spreads: bool = False,
) -> tuple[str, str] | None:
    """
    Where a result is wrong: the check that says so and a sentence; None when it is right.

    Args:
        spec: whose tolerance holds.
        actual: the result, of ``dtype``.
        expected: f64, or exact integers.
        dtype: the output's.
        magnitude: of the terms, for ops that have one.
        exact: whether the implementation is declared so.
        spreads: whether any element may be NaN, and what is not finite any other such number.
    """
    if actual.shape != expected.shape:
        return "contract", f"shape {actual.shape}, the truth has {expected.shape}"
    if not dtype.is_float:
        wrong = np.asarray(actual != expected.astype(actual.dtype))
        return _describe("values", wrong, actual, expected, "exactly")
    with np.errstate(all="ignore"):
        values, truth = actual.astype(np.float64), expected.astype(np.float64)
        off, allowed, odd = deviation(spec, values, expected, dtype, magnitude, exact=exact)
        if spreads:
            odd &= ~np.isnan(values) & (np.isfinite(values) | np.isfinite(truth))
    if odd.any():
        return _describe("nan_inf", odd, values, truth, f"rounded to {dtype}")
    rtol, atol = spec.tolerance.get(dtype, EXACT)
    said = f"within rtol={rtol:g} atol={atol:g}"
    if magnitude is not None:
        said += " and what its terms may lose"
    return _describe("values", np.asarray(off > allowed), values, truth, said)


def deviation(
    spec: OpSpec,
    values: Array,
    expected: Array,
    dtype: DType,
    magnitude: Array | None = None,
    *,
    exact: bool = True,
) -> tuple[Array, Array, Array]:
    """
    How far each element of a floating-point result is off.

    Args:
        spec: whose tolerance holds.
        values: the result in f64.
        expected: f64, or exact integers.
        dtype: the output's.
        magnitude: of the terms, for ops that have one.
        exact: whether the implementation is declared so.

    Returns:
        The distance from the truth (0 where either is not finite), the distance that is
        allowed, and where NaN or an infinity is wrong or missing.
    """
    nearest, truth = rounded(expected, dtype), expected.astype(np.float64)
    allowed = spec.allowed(dtype, truth, magnitude, exact=exact)
    # At the end of the range an error within tolerance decides between finite and not.
    edge = np.isfinite(truth) & (allowed > 0) & (np.abs(truth) + allowed >= LARGEST[dtype.name])
    if dtype is dtypes.f8e4m3:
        beyond = np.isnan(values)
    else:
        # Of either sign, where one is allowed to be off by more than the truth and the range.
        either = allowed - np.abs(truth) >= LARGEST[dtype.name]
        beyond = np.isinf(values) & (either | (np.signbit(values) == np.signbit(truth)))
    same = (values == nearest) | (np.isnan(values) & np.isnan(nearest)) | (edge & beyond)
    finite = np.isfinite(nearest) & np.isfinite(values)
    odd = ~finite & ~same & ~(edge & np.isfinite(values))
    # The nearest number of the dtype is right, however far from the truth that is.
    off = np.minimum(np.abs(values - truth), np.abs(values - nearest))
    # What is rounded to infinity may as well be the largest number, at the edge.
    allowed = allowed + np.where(edge, LARGEST[dtype.name] * 2.0**-4, 0.0)
    judged = finite | (edge & np.isfinite(values))
    return np.asarray(np.where(judged, off, 0.0)), allowed, np.asarray(odd)


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
