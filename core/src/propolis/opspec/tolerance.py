"""
How far results may be from the truth.

A result is rounded to its dtype, and what it is computed from was rounded on the way.
The first error is relative to the result; where terms cancel the second is relative to
the terms, which may be far larger than what is left of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypedDict

import ml_dtypes
import numpy as np

from propolis import dtypes


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis.dtypes import DType

Array = np.ndarray[Any, Any]

Magnitude = Callable[..., Any]
"""
``magnitude(f, *arrays, **attributes)``: how large the terms were that a result is made of.

``f`` computes the op in f64, the arrays are its tensors in f64 (integers as they are).  An
op with several outputs gives a tuple, None for outputs that have no such terms.
"""


class Tolerance(NamedTuple):
    """
    How far a result may be from the truth: ``|x - truth| <= atol + rtol * |truth|``.

    Where both are 0 (``EXACT``) the result is the truth rounded once to its dtype.  Ops
    whose terms may cancel are allowed more: see :meth:`OpSpec.allowed`.
    """

    rtol: float
    atol: float


class Judged(TypedDict, total=False):
    """How results are judged: what :class:`OpSpec` has under these names."""

    tolerance: Mapping[DType, Tolerance]
    magnitude: Magnitude | None
    rounded: Magnitude | None
    loss: Mapping[DType, float]


EXACT: Final = Tolerance(0.0, 0.0)

# Some ulps of each dtype, for ops that round a few times on the way; atol for functions
# that cancel or cross zero where their argument is rounded (sin at pi, erf's series).
DEFAULT_TOLERANCE: Final[Mapping[DType, Tolerance]] = {
    dtypes.f64: Tolerance(1e-12, 1e-13),
    dtypes.f32: Tolerance(1e-5, 1e-6),
    dtypes.f16: Tolerance(2e-3, 1e-3),
    dtypes.bf16: Tolerance(1.6e-2, 1e-3),
    dtypes.f8e4m3: Tolerance(1.3e-1, 2e-3),
    dtypes.f8e5m2: Tolerance(2.6e-1, 4e-3),
}

_FORMATS: Final = {
    d: ml_dtypes.finfo(d.numpy)  # type: ignore[no-untyped-call]  # it has no types
    for d in DEFAULT_TOLERANCE
}
# The last place of numbers too small for a leading 1: nothing is finer there, and two
# roundings may both be off by half of it.
SMALLEST: Final = {d: float(info.smallest_subnormal) for d, info in _FORMATS.items()}

# As many ulps, and nothing that a small result could hide in: for functions that neither
# cancel nor cross zero (exp, sqrt, shares of a sum), however small their results.
RELATIVE: Final = {d: Tolerance(t.rtol, SMALLEST[d]) for d, t in DEFAULT_TOLERANCE.items()}

# One rounding to the dtype, of what was computed in f32 or wider: half an ulp, and a
# quarter of that for what the computation moved over a tie.  The computation's own error
# is the business of ``magnitude``.
ROUNDED: Final = {d: Tolerance(0.625 * float(i.eps), SMALLEST[d]) for d, i in _FORMATS.items()}

# What the terms of a result may lose, in half ulps of the dtype they are computed in: sums
# of n terms lose about sqrt(n) in order and log(n) as trees, so this is for some thousands.
ROUNDINGS: Final = 64

# What is lost of the largest terms where inputs are rounded further: to 8 bits, or to bf16.
INEXACT: Final = 2.0**-7


def of_absolutes(f: Callable[..., Any], *arrays: Array, **attributes: Any) -> Any:
    """The magnitude of sums of products: the op itself, of absolute values."""
    given = {k: abs(v) if _is_floats(v) else v for k, v in attributes.items()}
    return f(*(abs(a) if _is_floats(a) else a for a in arrays), **given)


def _is_floats(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def allowed_error(
    tolerance: Tolerance,
    dtype: DType,
    truth: Array,
    magnitude: Array | None,
    *,
    exact: bool,
    loss: float | None = None,
) -> Array:
    """What :meth:`OpSpec.allowed` gives, for a tolerance and an entry of ``OpSpec.loss``."""
    rtol, atol = tolerance
    error = atol + rtol * np.abs(truth)
    if magnitude is not None:
        unit = 2.0**-53 if dtype is dtypes.f64 else 2.0**-24
        # NaN where the terms themselves are: those elements are judged by being NaN.
        terms = np.nan_to_num(magnitude, nan=0.0, posinf=0.0)
        error = error + (ROUNDINGS * unit if loss is None else loss) * terms
        if not exact and np.size(terms) and loss is None:
            error = error + INEXACT * np.max(terms)  # a block of 8-bit numbers shares its scale
    return np.asarray(error)
