"""Arithmetic and comparison of two tensors; integers wrap around in their own dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.inputs import at_any_rank
from propolis_conformance.integers import each
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis_conformance.op_info import Array


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def _div(a: Array, b: Array) -> Array:
    return each(_quotient, a, b) if a.dtype.kind in "iu" else np.asarray(a / b)


def _pow(a: Array, b: Array) -> Array:
    return each(_power, a, b) if a.dtype.kind in "iu" else np.power(a, b)


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return each(lambda m, n: m % n if n else 0, a, b)
    return np.asarray(np.remainder(a, b))


def _compare(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, b).astype(np.uint8)


_TRUTHS: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "remainder": _remainder,
    "pow": _pow,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
}
_RECIPES = (
    *at_any_rank(Recipe({"a": T("r s c"), "b": T("r s c")}, ties=True, extreme=True)),
    Recipe({"a": T("r s c"), "b": T("1 s 1")}),
    Recipe({"a": T("c"), "b": T("r s c")}),
    Recipe({"a": T("r 1 c"), "b": T("s 1")}, brief=True),
    Recipe({"a": T("r s c"), "b": T("r 1 c")}, brief=True),
)
OPS: Final = {name: OpInfo(truth, _RECIPES) for name, truth in _TRUTHS.items()}
