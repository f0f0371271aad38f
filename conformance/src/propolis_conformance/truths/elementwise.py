"""Truths of ops that work element by element; integers wrap around in their own dtype."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis.dtypes import DType

Array = np.ndarray[Any, Any]

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


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


def _whole(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Integers are whole already."""
    return lambda x: x if x.dtype.kind in "iu" else function(x)


def saturated(value: float, kind: np.dtype) -> int:
    """A number truncated toward zero and clamped to an integer dtype; NaN is 0."""
    info = np.iinfo(kind)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return int(info.max if value > 0 else info.min)
    return min(max(int(value), info.min), info.max)


def wrapped(value: int, kind: np.dtype) -> int:
    """A whole number modulo the range of an integer dtype."""
    info = np.iinfo(kind)
    return (value - info.min) % (1 << info.bits) + info.min


def _each(function: Callable[..., int], *arrays: Array) -> Array:
    """A function of Python's unbounded integers, element by element, wrapped around."""
    kind = arrays[0].dtype
    same = np.broadcast_arrays(*arrays)
    values = [
        wrapped(function(*map(int, n)), kind) for n in zip(*(a.flat for a in same), strict=True)
    ]
    return np.array(values, kind).reshape(same[0].shape)


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def _div(a: Array, b: Array) -> Array:
    return _each(_quotient, a, b) if a.dtype.kind in "iu" else np.asarray(a / b)


def _pow(a: Array, b: Array) -> Array:
    return _each(_power, a, b) if a.dtype.kind in "iu" else np.power(a, b)


def _clamp(x: Array, low: float, high: float) -> Array:
    if x.dtype.kind in "iu":
        low, high = saturated(low, x.dtype), saturated(high, x.dtype)
    return np.minimum(np.maximum(x, low), high).astype(x.dtype)


def _affine(x: Array, mul: float, add: float) -> Array:
    if x.dtype.kind in "iu":
        m, a = saturated(mul, x.dtype), saturated(add, x.dtype)
        return _each(lambda n: n * m + a, x)
    return np.asarray(x * mul + add)


def _cast(x: Array, dtype: DType) -> Array:
    if dtype.is_float:
        return x.astype(np.float64) if x.dtype.kind == "f" or dtype.name != "f64" else x
    kind = dtype.numpy
    change = saturated if x.dtype.kind == "f" else (lambda n, kind: wrapped(int(n), kind))
    return np.array([change(n, kind) for n in x.flat], kind).reshape(x.shape)


def _fill(target: Array, value: float) -> Array:
    if target.dtype.kind in "iu":
        value = saturated(value, target.dtype)
    return np.full_like(target, value)


def _arange(target: Array, start: float = 0, step: float = 1) -> Array:
    places = np.arange(target.size)
    if target.dtype.kind in "iu":
        values = [wrapped(int(start) + int(i) * int(step), target.dtype) for i in places]
        return np.array(values, target.dtype).reshape(target.shape)
    return np.asarray(start + places * float(step)).reshape(target.shape)


def _compare(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, b).astype(np.uint8)


FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    "exp": np.exp,
    "log": np.log,
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
    "round": _whole(np.rint),
    "powf": lambda x, exponent: np.power(x, float(exponent)),
    "elu": _elu,
    "clamp": _clamp,
    "affine": _affine,
    "cast": _cast,
    "silu_mul": lambda gate, up: _gated(gate, gate, up),
    "gelu_mul": _gelu,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "pow": _pow,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "where": lambda condition, a, b: np.where(condition != 0, a, b),
    "copy": lambda x: x,
    "assign": lambda target, source: np.broadcast_to(source, target.shape),
    "fill": _fill,
    "arange": _arange,
}
