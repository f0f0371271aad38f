"""Elementwise arithmetic and comparisons of two tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import OpImpl
from propolis.dtypes import PLAIN
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor


@ieee
def add(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """Elementwise sum; f16, bf16 and f8 are added in f32 and rounded once."""
    np.add(a.array, b.array, out=out.array)


@ieee
def sub(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """Elementwise difference."""
    np.subtract(a.array, b.array, out=out.array)


@ieee
def mul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """Elementwise product; f16, bf16 and f8 are multiplied in f32 and rounded once."""
    np.multiply(a.array, b.array, out=out.array)


@ieee
def div(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """Elementwise quotient; of integers toward zero, by zero 0."""
    if not a.dtype.is_integer:
        np.divide(a.array, b.array, out=out.array)
        return
    x, y = np.broadcast_arrays(a.array, b.array)
    floor = x // np.where(y == 0, 1, y)
    # Floor division rounds negative quotients away from zero.
    inexact = (floor * y != x) & ((x < 0) != (y < 0))
    out.array[...] = np.where(y == 0, 0, floor + inexact.astype(floor.dtype))


@ieee
def remainder(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """What division leaves, with the divisor's sign; of integers by zero 0."""
    if not a.dtype.is_integer:
        store(out, np.remainder(wide(a), wide(b)))
        return
    x, y = np.broadcast_arrays(a.array, b.array)
    store(out, np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y))))


@ieee
def maximum(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """The larger; NaN where either is."""
    store(out, np.maximum(_comparable(a), _comparable(b)))


@ieee
def minimum(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """The smaller; NaN where either is."""
    store(out, np.minimum(_comparable(a), _comparable(b)))


@ieee
def pow(out: Tensor, a: Tensor, b: Tensor, /) -> None:  # noqa: A001  (the op's name)
    """``a ** b``; integers wrap around, to a negative power 0 save for 1 and -1."""
    if not a.dtype.is_integer:
        store(out, np.power(wide(a), wide(b)))
        return
    x, y = np.broadcast_arrays(a.array, b.array)
    result = np.power(x, np.where(y < 0, 0, y))
    odd = np.where(y % 2 == 1, x, np.ones_like(x))
    unit = (x == 1) | ((x < 0) & (x + 1 == 0))
    out.array[...] = np.where(y < 0, np.where(unit, odd, 0), result)


def _comparable(x: Tensor) -> np.ndarray:
    """Integers as they are, floats in f32 or f64 (exact)."""
    return x.array if x.dtype.is_integer else wide(x)


def _compare(name: str, function: Callable[..., Any]) -> Callable[..., None]:
    @ieee
    def run(out: Tensor, a: Tensor, b: Tensor, /) -> None:
        store(out, function(_comparable(a), _comparable(b)))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"``{name}`` of every pair, as 1 and 0."
    return run


OPS = [
    OpImpl(op="add", fn=add, dtypes=PLAIN, in_place=True),
    OpImpl(op="sub", fn=sub, dtypes=PLAIN, in_place=True),
    OpImpl(op="mul", fn=mul, dtypes=PLAIN, in_place=True),
    OpImpl(op="div", fn=div, dtypes=PLAIN, in_place=True),
    OpImpl(op="remainder", fn=remainder, dtypes=PLAIN, in_place=True),
    OpImpl(op="maximum", fn=maximum, dtypes=PLAIN, in_place=True),
    OpImpl(op="minimum", fn=minimum, dtypes=PLAIN, in_place=True),
    OpImpl(op="pow", fn=pow, dtypes=PLAIN, in_place=True),
    OpImpl(op="eq", fn=_compare("eq", np.equal), dtypes=PLAIN, in_place=True),
    OpImpl(op="ne", fn=_compare("ne", np.not_equal), dtypes=PLAIN, in_place=True),
    OpImpl(op="lt", fn=_compare("lt", np.less), dtypes=PLAIN, in_place=True),
    OpImpl(op="le", fn=_compare("le", np.less_equal), dtypes=PLAIN, in_place=True),
    OpImpl(op="gt", fn=_compare("gt", np.greater), dtypes=PLAIN, in_place=True),
    OpImpl(op="ge", fn=_compare("ge", np.greater_equal), dtypes=PLAIN, in_place=True),
]
