"""Unary ops, and products with a gate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.inputs import at_any_rank
from propolis_conformance.integers import each
from propolis_conformance.integers import saturated
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}

_X = {"x": T("r s c")}
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _product(*factors: Array | float) -> Array:
    """A product of which no part overflows or vanishes where the whole does not."""
    parts = [np.frexp(factor) for factor in factors]
    return np.ldexp(math.prod(m for m, _ in parts), sum(e for _, e in parts))


def _gated(x: Array | float, z: Array, up: Array | float = 1.0) -> Array:
    """``x * up * sigmoid(z)``; beyond what a quarter of ``z`` leaves of f64 all is 0."""
    quarter = np.exp(np.minimum(z, 0) / 4)
    return _product(x, up, 1 / (1 + np.exp(-np.abs(z))), *(quarter,) * 4)


def _gelu(x: Array, up: Array | float = 1.0) -> Array:
    # (1 + tanh(z)) / 2 is sigmoid(2 z), which does not cancel.
    return _gated(x, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), up)


def _whole(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Integers are whole already."""
    return lambda x: x if x.dtype.kind in "iu" else function(x)


_OF_X: Mapping[str, Callable[[Array], Any]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "recip": lambda x: 1 / x,
    "erf": _erf,
    "sigmoid": lambda x: _gated(1.0, x),
    "silu": lambda x: _gated(x, x),
    "gelu": _gelu,
    "gelu_erf": lambda x: x / 2 * _erfc(-x / math.sqrt(2)),
    "quick_gelu": lambda x: _gated(x, 1.702 * x),
    "softplus": lambda x: np.logaddexp(0, x),
    "abs": np.abs,
    "neg": np.negative,
    "sqr": lambda x: x * x,
    "relu": lambda x: np.maximum(x, 0),
    "sign": np.sign,
    "floor": _whole(np.floor),
    "ceil": _whole(np.ceil),
    "trunc": _whole(np.trunc),
    "round": _whole(np.rint),
}
_UNARY = Recipe(_X, ties=True, extreme=True)
OPS.update({name: OpInfo(truth, at_any_rank(_UNARY)) for name, truth in _OF_X.items()})


_POWERS = (2.0, -0.5, 0.5, 3.0, 0.0, -1.0)
OPS["powf"] = OpInfo(
    lambda x, exponent: np.power(x, float(exponent)),
    at_any_rank(Recipe(_X, tuple({"exponent": e} for e in _POWERS), extreme=True)),
)


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


OPS["elu"] = OpInfo(
    _elu, at_any_rank(Recipe(_X, ({}, {"alpha": 0.5}, {"alpha": 0.0}), extreme=True))
)


def _clamp(x: Array, low: float, high: float) -> Array:
    if x.dtype.kind in "iu":
        low, high = saturated(low, x.dtype), saturated(high, x.dtype)
    return np.minimum(np.maximum(x, low), high).astype(x.dtype)


_CLAMPS = (
    {"low": -1.0, "high": 1.0},
    {"low": 0.3, "high": float("inf")},
    {"low": float("-inf"), "high": -0.1},
    {"low": 2.0, "high": 2.0},
)
OPS["clamp"] = OpInfo(_clamp, at_any_rank(Recipe(_X, _CLAMPS, extreme=True)))


def _affine(x: Array, mul: float, add: float) -> Array:
    if x.dtype.kind in "iu":
        m, a = saturated(mul, x.dtype), saturated(add, x.dtype)
        return each(lambda n: n * m + a, x)
    return np.asarray(x * mul + add)


_LINES = ({"mul": 3.0, "add": -2.0}, {"mul": 0.1, "add": 0.0}, {"mul": -1.5, "add": 0.7})
OPS["affine"] = OpInfo(_affine, at_any_rank(Recipe(_X, _LINES, extreme=True)))


_GATE_AND_UP = Recipe({"gate": T("r s c"), "up": T("r s c")}, extreme=True)
OPS["silu_mul"] = OpInfo(lambda gate, up: _gated(gate, gate, up), at_any_rank(_GATE_AND_UP))
OPS["gelu_erf_mul"] = OpInfo(
    lambda gate, up: _product(gate / 2, _erfc(-gate / math.sqrt(2)), up), at_any_rank(_GATE_AND_UP)
)
OPS["gelu_mul"] = OpInfo(_gelu, at_any_rank(_GATE_AND_UP))
