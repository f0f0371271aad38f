"""How far a call's result is from its truth, in the measures that people compare."""

from __future__ import annotations

import math
from dataclasses import asdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

import ml_dtypes
import numpy as np

from propolis.opspec.spec import EXACT
from propolis_conformance.compare import deviation
from propolis_conformance.compare import difference
from propolis_conformance.families import info_of
from propolis_conformance.truth import truth


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.ops import OpSpec
    from propolis.tensor import Device
    from propolis_conformance.drift.call import SavedCall
    from propolis_conformance.truth import Truth

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Errors:
    """
    The errors of one output, or the worst of several.

    Attributes:
        max_abs: the largest ``|result - truth|``.
        max_rel: the largest of it over ``|truth|``, where that is not 0.
        ulp: the largest of it in units of the last place of the truth, where that is not 0,
            in the result's dtype.
        nmse: the sum of squared errors over the sum of squared truths.
        ratio: the largest of it over what the op's tolerance allows there: above 1 is wrong.
        nonfinite: elements where NaN or an infinity is wrong or missing.
        wrong: elements beyond tolerance, those included.
        numel: elements compared.
        source: who computed the truth.
        message: the first wrong element, as conformance says it; empty where none is.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    ulp: float = 0.0
    nmse: float = 0.0
    ratio: float = 0.0
    nonfinite: int = 0
    wrong: int = 0
    numel: int = 0
    source: str = ""
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether every element is within tolerance."""
        return not self.wrong

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }

    def worst(self, other: Errors) -> Errors:
        """The worse of the two in each measure."""
        first, second = sorted((self, other), key=lambda e: (e.nonfinite, e.ratio), reverse=True)
        return Errors(
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
            max(self.ulp, other.ulp),
            max(self.nmse, other.nmse),
            max(self.ratio, other.ratio),
            self.nonfinite + other.nonfinite,
            self.wrong + other.wrong,
            self.numel + other.numel,
            first.source or second.source,
            first.message or second.message,
        )


def rank(errors: Errors) -> tuple[bool, float, float, float]:
    """What makes one call worse than another: beyond tolerance, by how much, then how far off."""
    return (not errors.passed, errors.ratio, errors.nonfinite, errors.max_abs)


def judge(call: SavedCall, oracle: Device) -> Errors:
    """
    A call's results against the truth for its arguments.

    Args:
        call: a call that ended.
        oracle: a CPU that the reference alone serves.

    Raises:
        NoTruthError: nobody knows what is right.
    """
    return compared(call, expectation(call, oracle), oracle)


def compared(call: SavedCall, expected: Truth, cpu: Device) -> Errors:
    """A call's results against a truth that is known; any CPU will do."""
    found = Errors(source=expected.source)
    given = (tensor.value(cpu) for tensor in call.tensors.values())
    odd = call.spreads and not all(np.isfinite(x.array).all() for x in given if x.dtype.is_float)
    for i, result in enumerate(call.results):
        actual = result.value(cpu).array
        dtype = result.dtype
        wanted = expected.outputs[i]
        magnitude = expected.magnitudes[i]
        errors = measure(call.spec, actual, wanted, dtype, magnitude, exact=call.exact, spreads=odd)
        found = found.worst(errors)
    return found


def expectation(call: SavedCall, oracle: Device) -> Truth:
    """The truth for a call's arguments; raises as :func:`judge`."""
    return truth(
        call.spec,
        {name: tensor.value(oracle) for name, tensor in call.tensors.items()},
        call.attributes,
        oracle,
        fixed={n for recipe in info_of(call.op).recipes for n in recipe.fixed},
        exact=call.exact,
    )


def measure(
    spec: OpSpec,
    actual: Array,
    expected: Array,
    dtype: DType,
    magnitude: Array | None = None,
    *,
    exact: bool = True,
    spreads: bool = False,
) -> Errors:
    """One output against its truth; arguments as ``conformance.compare.difference``."""
    wrong = difference(spec, actual, expected, dtype, magnitude, exact=exact, spreads=spreads)
    message = wrong[1] if wrong else ""
    if actual.shape != expected.shape or not actual.size:
        return Errors(numel=actual.size, wrong=int(wrong is not None), message=message)
    if not dtype.is_float:
        return _exact(actual, expected, message)
    with np.errstate(all="ignore"):
        values = actual.astype(np.float64)
        off, allowed, odd = deviation(spec, values, expected, dtype, magnitude, exact=exact)
        expected = expected.astype(np.float64)
        error = np.abs(values - expected)
        error[~np.isfinite(error)] = 0.0
        size = np.where(np.isfinite(expected), np.abs(expected), 0.0)
        relative = np.where(size > 0, error / size, 0.0)
        ratio = np.where(off > 0, off / allowed, 0.0)
        total = float(np.sum(size * size))
        # Scaled first: squares of large numbers overflow.
        largest = float(size.max()) or 1.0
        nmse = float(np.sum((error / largest) ** 2) / (np.sum((size / largest) ** 2) or 1.0))
        return Errors(
            float(error.max()),
            float(relative.max()),
            float(np.where(size > 0, error / _spacing(size, dtype), 0.0).max()),
            nmse if total else float(error.max() > 0),
            math.inf if odd.any() else float(ratio.max()),
            int(np.count_nonzero(odd)),
            int(np.count_nonzero(odd | (off > allowed))),
            actual.size,
            message=message,
        )


def _exact(actual: Array, expected: Array, message: str) -> Errors:
    """Integers and blocks: equal, or wrong."""
    differs = np.asarray(actual != expected.astype(actual.dtype))
    count = int(np.count_nonzero(differs))
    # Differences of 64-bit integers do not fit into them.
    largest = float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max())
    return Errors(
        max_abs=largest,
        ratio=math.inf if count else 0.0,
        wrong=count,
        numel=actual.size,
        message=message,
    )


def _spacing(size: Array, dtype: DType) -> Array:
    """The distance of neighbours in the dtype, at each magnitude."""
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    exponent = np.frexp(size)[1] - 1
    return np.asarray(np.ldexp(1.0, np.maximum(exponent, info.minexp) - info.nmant))


def tolerance_text(spec: OpSpec, dtype: DType) -> str:
    """The op's tolerance for an output dtype, in words."""
    tolerance = spec.tolerance.get(dtype, EXACT)
    if tolerance == EXACT:
        return "exact, rounded once"
    return f"rtol={tolerance.rtol:g} atol={tolerance.atol:g}"


__all__ = ["Errors", "compared", "expectation", "judge", "measure", "rank", "tolerance_text"]
