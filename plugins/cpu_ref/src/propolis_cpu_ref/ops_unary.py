"""Elementwise ops of one tensor, and gated activations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._threads import grain
from propolis_cpu_ref._threads import over_rows
from propolis_cpu_ref.ops_cast import as_scalar


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor

# Elements that a pass works on at a time, so that several passes over them find them
# in cache.
CACHED = 100_000

# ``-log(ndtr(x) / ndtr(-x)) / x`` as a polynomial of ``x ** 2``, where ndtr is the normal
# distribution: fitted to scipy's log_ndtr such that its largest error of ndtr is least (3e-8),
# for squares up to the reach.  Beyond it ndtr is 0 or 1 to f32.
NDTR_REACH = np.float32(5.75**2)
NDTR = [
    np.float32(-c)
    for c in (
        1.59576988,
        7.26661691e-02,
        -6.51899451e-05,
        -1.10612390e-04,
        7.92948942e-06,
        -2.64526731e-07,
        3.51234308e-09,
    )
]


def _erf(x: np.ndarray) -> np.ndarray:
    # numpy has no erf.  scipy takes 0.1 s to import, and most models need none.
    from scipy.special import erf as function  # noqa: PLC0415

    return np.asarray(function(x))


def _gated(
    x: np.ndarray, z: np.ndarray, up: np.ndarray | None = None, out: np.ndarray | None = None
) -> np.ndarray:
    """``x / (1 + exp(-z))``, times ``up`` where given, into ``out`` where given."""
    y = np.empty_like(z) if out is None else out
    # Numpy notices overflows on its way; looking for them would take a pass over the elements.
    overflows: list[str] = []
    with np.errstate(over="call", call=lambda kind, _: overflows.append(kind)):
        below = np.negative(z, out=np.empty_like(z))
        np.exp(below, out=below)
        below += 1
        np.divide(x if up is None else np.multiply(x, up, out=y), below, out=y)
    if overflows:
        lost = np.isinf(below) | np.isinf(y)
        given = (x, z, z.dtype.type(1) if up is None else up)
        y[lost] = _gated_apart(*(np.broadcast_to(a, z.shape)[lost] for a in given))
    return y


def _gated_apart(x: np.ndarray, z: np.ndarray, up: np.ndarray) -> np.ndarray:
    """
    The same, where a factor or a product of some leaves the range that the result is in.

    The exponential goes in by quarters, between which it meets both numbers; the rest of the
    sigmoid is at least one half, and must not make an infinity finite, nor round what is small.
    """
    quarter = np.exp(np.minimum(z, 0) / 4)
    rest = 1 / (1 + np.exp(-np.abs(z)))
    small = np.abs(x) < 1
    y = (np.where(small, x, x * rest) * quarter) * (up * quarter) * quarter * quarter
    return np.asarray(np.where(small, y * rest, y))


def _gelu_argument(x: np.ndarray) -> np.ndarray:
    """What GELU's tanh form is a sigmoid of: twice what it is a tanh of."""
    scale = 2 * math.sqrt(2 / math.pi)
    return np.asarray(x * (scale + scale * 0.044715 * (x * x)))


FLOAT_FUNCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "recip": np.reciprocal,
    "erf": _erf,
    "sigmoid": lambda x: _gated(x.dtype.type(1), x),
    "silu": lambda x: _gated(x, x),
    "gelu": lambda x: _gated(x, _gelu_argument(x)),
    "quick_gelu": lambda x: _gated(x, 1.702 * x),
    "softplus": lambda x: np.logaddexp(x, 0),
}

# Of floats and integers alike; whole numbers round to themselves.
PLAIN_FUNCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "abs": np.abs,
    "neg": np.negative,
    "sqr": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
}


def _implement(name: str, function: Callable[[np.ndarray], Any]) -> Callable[..., None]:
    """The op: compute in f32 or f64, integers in their own arithmetic."""

    @ieee
    def run(out: Tensor, x: Tensor, /) -> None:
        if x.dtype.is_integer:
            whole = name in ("floor", "ceil", "trunc", "round")
            store(out, x.array if whole else function(x.array))
        else:
            store(out, function(wide(x)))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"``{name}`` of every element."
    return run


@ieee
def powf(out: Tensor, x: Tensor, /, exponent: float) -> None:
    """Every element to one power."""
    values = wide(x)
    store(out, values ** values.dtype.type(exponent))


@ieee
def elu(out: Tensor, x: Tensor, /, alpha: float = 1.0) -> None:
    """``x`` where positive, else ``alpha * (exp(x) - 1)``."""
    values = wide(x)
    store(out, np.where(values > 0, values, values.dtype.type(alpha) * np.expm1(values)))


@ieee
def clamp(out: Tensor, x: Tensor, /, low: float, high: float) -> None:
    """Every element, moved into [low, high]."""
    values = x.array if x.dtype.is_integer else wide(x)
    store(out, np.clip(values, as_scalar(low, values.dtype), as_scalar(high, values.dtype)))


@ieee
def affine(out: Tensor, x: Tensor, /, mul: float, add: float) -> None:
    """``x * mul + add``."""
    values = x.array if x.dtype.is_integer else wide(x)
    store(out, values * as_scalar(mul, values.dtype) + as_scalar(add, values.dtype))


@ieee
def silu_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    """``gate * up / (1 + exp(-gate))``."""
    width = gate.shape[-1] if gate.shape else 1
    count = math.prod(gate.shape[:-1])
    g, u = (wide(t).reshape(count, width) for t in (gate, up))
    y = scratch(out)
    rows = y.reshape(count, width)

    def work(part: slice) -> None:
        # Some rows at a time, so that the passes over them stay in cache.
        step = max(1, CACHED // max(width, 1))
        for start in range(part.start, part.stop, step):
            some = slice(start, min(start + step, part.stop))
            _gated(g[some], g[some], u[some], rows[some])

    over_rows(out.device.threads, count, grain(width), work)
    store(out, y)


@ieee
def gelu_erf(out: Tensor, x: Tensor, /) -> None:
    """``x * ndtr(x)``."""
    store(out, _times_ndtr(out, wide(x)))


@ieee
def gelu_erf_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    """``gate * ndtr(gate) * up``."""
    y = _times_ndtr(out, wide(gate))
    store(out, np.multiply(y, wide(up), out=y))


def _times_ndtr(out: Tensor, values: np.ndarray) -> np.ndarray:
    """``x * ndtr(x)``, where ``ndtr`` is the logistic function of an odd polynomial."""
    if values.dtype == np.float64:
        return np.asarray(0.5 * values * (1 + _erf(values * math.sqrt(0.5))))
    width = values.shape[-1] if values.shape else 1
    count = math.prod(values.shape[:-1])
    y = np.empty(values.shape, values.dtype)
    rows, given = y.reshape(count, width), values.reshape(count, width)

    def work(part: slice) -> None:
        step = max(1, CACHED // 2 // max(width, 1))
        for start in range(part.start, part.stop, step):
            some = slice(start, min(start + step, part.stop))
            v = given[some]
            square = np.square(v)
            np.minimum(square, NDTR_REACH, out=square)
            share = square * NDTR[-1]
            for term in NDTR[-2:0:-1]:
                share += term
                share *= square
            share += NDTR[0]
            share *= v
            np.exp(share, out=share)
            share += 1
            np.divide(v, share, out=rows[some])

    over_rows(out.device.threads, count, grain(width), work)
    return y


@ieee
def gelu_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    """``gelu(gate) * up``."""
    x = wide(gate)
    store(out, _gated(x, _gelu_argument(x), wide(up)))


OPS = [
    *(
        OpImpl(op=n, fn=_implement(n, f), dtypes=FLOATS, in_place=True)
        for n, f in FLOAT_FUNCTIONS.items()
    ),
    *(
        OpImpl(op=n, fn=_implement(n, f), dtypes=PLAIN, in_place=True)
        for n, f in PLAIN_FUNCTIONS.items()
    ),
    OpImpl(op="powf", fn=powf, dtypes=FLOATS, in_place=True),
    OpImpl(op="elu", fn=elu, dtypes=FLOATS, in_place=True),
    OpImpl(op="clamp", fn=clamp, dtypes=PLAIN, in_place=True),
    OpImpl(op="affine", fn=affine, dtypes=PLAIN, in_place=True),
    OpImpl(op="silu_mul", fn=silu_mul, dtypes=FLOATS),
    OpImpl(op="gelu_erf", fn=gelu_erf, dtypes=FLOATS, in_place=True),
    OpImpl(op="gelu_erf_mul", fn=gelu_erf_mul, dtypes=FLOATS, in_place=True),
    OpImpl(op="gelu_mul", fn=gelu_mul, dtypes=FLOATS, in_place=True),
]
