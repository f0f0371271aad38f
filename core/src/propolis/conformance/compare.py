"""Results against the truth: how far off may they be, and where NaN and inf must be."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.conformance.rounding import rounded
from propolis.ops._spec import EXACT


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.ops._spec import OpSpec

Array = np.ndarray[Any, Any]

LARGEST: Final = {
    "f64": float(np.finfo(np.float64).max),
    "f32": float(np.finfo(np.float32).max),
    "f16": 65504.0,
    "bf16": float.fromhex("0x1.fep127"),
    "f8e4m3": 448.0,
}


def difference(
    spec: OpSpec,
    actual: Array,
    expected: Array,
    dtype: DType,
    magnitude: Array | None = None,
    *,
    exact: bool = True,
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
    """
    if actual.shape != expected.shape:
        return "contract", f"shape {actual.shape}, the truth has {expected.shape}"
    if not dtype.is_float:
        wrong = np.asarray(actual != expected.astype(actual.dtype))
        return _describe("values", wrong, actual, expected, "exactly")
    with np.errstate(all="ignore"):
        nearest = rounded(expected, dtype)
        truth = expected.astype(np.float64)
        allowed = spec.allowed(dtype, truth, magnitude, exact=exact)
        found = _floats(actual.astype(np.float64), truth, nearest, allowed, dtype)
    check, wrong = found
    rtol, atol = spec.tolerance.get(dtype, EXACT)
    said = f"within rtol={rtol:g} atol={atol:g}" if check == "values" else f"rounded to {dtype}"
    if magnitude is not None and check == "values":
        said += " and what its terms may lose"
    return _describe(check, wrong, actual.astype(np.float64), truth, said)


def _floats(
    values: Array, truth: Array, nearest: Array, allowed: Array, dtype: DType
) -> tuple[str, Array]:
    """Which elements are wrong, and by which check."""
    # At the end of the range an error within tolerance decides between finite and not.
    edge = np.isfinite(truth) & (allowed > 0) & (np.abs(truth) + allowed >= LARGEST[dtype.name])
    beyond = np.isnan(values) if dtype is dtypes.f8e4m3 else np.isinf(values)
    odd = ~(np.isfinite(nearest) & np.isfinite(values))
    same = (values == nearest) | (np.isnan(values) & np.isnan(nearest)) | (edge & beyond)
    # The nearest number of the dtype is right, however far from the truth that is.
    off = np.minimum(np.abs(values - truth), np.abs(values - nearest))
    # What is rounded to infinity may as well be the largest number, at the edge.
    odd &= ~(edge & np.isfinite(values))
    wrong = np.asarray(odd & ~same)
    if wrong.any():
        return "nan_inf", wrong
    close = off <= allowed
    close |= edge & (np.abs(values - truth) <= allowed + LARGEST[dtype.name] * 2.0**-4)
    return "values", np.asarray(~odd & ~close)


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
