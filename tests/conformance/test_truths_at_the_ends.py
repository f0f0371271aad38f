"""Truths of exponentials, far from 0 and next to it, against Python's decimal numbers."""

from __future__ import annotations

import itertools
import math
from decimal import Context
from decimal import Decimal
from decimal import localcontext

import numpy as np
import pytest

from propolis_conformance.families import OPS


# Where f64's own exponential ends, where f32's does, and what f64 has at either end.
SIZES = [5e-324, 1e-320, 1e-300, 1e-17, 0.3, 1, 5.7, 20, 36.1, 87.4, 88.8, 103.5, 150, 354.9]
SIZES += [707.9, 709.9, 730.3, 744.9, 746, 900, 1417, 1500, 3100, 1e5, 1e60, 1e154, 1.7e308]
X = np.array([sign * size for size in SIZES for sign in (1, -1)])
UPS = [1.0, -5e-324, 1e-310, 1e-30, 2.5, 1e40, -1e160, 1.7e308]
EXACT = Context(prec=60, Emax=10**9, Emin=-(10**9), traps=[])
LARGEST = Decimal("1.7976931348623157e308")
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")


def sigmoid(x: Decimal) -> Decimal:
    """``1 / (1 + exp(-x))``."""
    return 1 / (1 + (-x).exp())


def gelu(x: Decimal) -> Decimal:
    """The tanh form, as core says it."""
    return x * sigmoid(2 * (2 / PI).sqrt() * (x + Decimal("0.044715") * x**3))


def _expm1(x: Decimal) -> Decimal:
    """``exp(x) - 1``, which 60 digits do not hold where ``x`` is small."""
    return x + x * x / 2 if abs(x) < Decimal("1e-15") else x.exp() - 1


def _log1p(e: Decimal) -> Decimal:
    """``ln(1 + e)``, likewise."""
    return e - e * e / 2 if e < Decimal("1e-30") else (1 + e).ln()


OF_ONE = {
    "exp": Decimal.exp,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "quick_gelu": lambda x: x * sigmoid(Decimal("1.702") * x),
    "gelu": gelu,
    "softplus": lambda x: x + (1 + (-x).exp()).ln() if x > 0 else _log1p(x.exp()),
    "tanh": lambda x: (-_expm1(-2 * abs(x)) / (2 + _expm1(-2 * abs(x)))).copy_sign(x),
    "elu": lambda x: x if x > 0 else _expm1(x),
}
OF_TWO = {
    "silu_mul": lambda gate, up: gate * sigmoid(gate) * up,
    "gelu_mul": lambda gate, up: gelu(gate) * up,
}


def agree(name: str, args: tuple[float, ...], actual: float, exact: Decimal) -> None:
    """As near as f64 arguments of an exponential allow, which may be some hundreds."""
    with localcontext(EXACT):
        if abs(exact) > LARGEST:
            assert actual == math.copysign(math.inf, exact), (name, args)
            return
        off = abs(Decimal(actual) - exact)
        allowed = abs(exact) * Decimal("1e-12") + Decimal("5e-324")
        assert off <= allowed, (name, args, actual, f"{exact:.17e}")


@pytest.mark.parametrize("name", OF_ONE)
def test_of_one(name: str) -> None:
    """Nothing overflows on the way to a number, and nothing vanishes on the way to one."""
    with np.errstate(all="ignore"):
        actual = OPS[name].truth(X)
    for x, y in zip(X.tolist(), actual.tolist(), strict=True):
        with localcontext(EXACT):
            exact = OF_ONE[name](Decimal(x))
        agree(name, (x,), y, exact)


@pytest.mark.parametrize("name", OF_TWO)
def test_of_two(name: str) -> None:
    """The same, where the other number brings back what is below the range of f64."""
    pairs = list(itertools.product(X.tolist(), UPS))
    gates, ups = np.array(pairs).T
    with np.errstate(all="ignore"):
        actual = OPS[name].truth(gates, ups)
    for pair, y in zip(pairs, actual.tolist(), strict=True):
        with localcontext(EXACT):
            exact = OF_TWO[name](*map(Decimal, pair))
        agree(name, pair, y, exact)
