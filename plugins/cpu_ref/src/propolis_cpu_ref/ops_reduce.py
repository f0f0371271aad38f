"""Reductions and running sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.ops.reduce import over
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.reduce import Dims


@ieee
def sum(out: Tensor, x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> None:  # noqa: A001
    """The sum, pairwise."""
    rows = _rows(x, over("sum", x.shape, dims))
    store(out, rows.sum(axis=-1, dtype=rows.dtype).reshape(out.shape))


@ieee
def prod(out: Tensor, x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> None:
    """The product."""
    rows = _rows(x, over("prod", x.shape, dims))
    store(out, rows.prod(axis=-1, dtype=rows.dtype).reshape(out.shape))


@ieee
def mean(out: Tensor, x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> None:
    """The mean."""
    rows = _rows(x, over("mean", x.shape, dims))
    store(out, _mean(rows).reshape(out.shape))


@ieee
def var(
    out: Tensor,
    x: Tensor,
    /,
    dims: Dims = None,
    *,
    keepdim: bool = False,
    correction: int = 0,
) -> None:
    """The variance, in two passes: the squares of what is left after the mean."""
    rows = _rows(x, over("var", x.shape, dims))
    total = np.square(rows - _mean(rows)).sum(axis=-1)
    divisor = rows.shape[-1] - correction
    store(out, (total / rows.dtype.type(divisor if divisor > 0 else np.nan)).reshape(out.shape))


@ieee
def min(out: Tensor, x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> None:  # noqa: A001
    """The smallest; NaN where any is."""
    store(out, np.min(_values(x), axis=over("min", x.shape, dims), keepdims=keepdim))


@ieee
def max(out: Tensor, x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> None:  # noqa: A001
    """The largest; NaN where any is."""
    store(out, np.max(_values(x), axis=over("max", x.shape, dims), keepdims=keepdim))


def argmax(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """Index of the first largest element; NaN is larger than any number."""
    np.argmax(_values(x), axis=dim, out=out.array)


def argmin(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """Index of the first smallest element; NaN is smaller than any number."""
    np.argmin(_values(x), axis=dim, out=out.array)


@ieee
def cumsum(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """The sums up to each element; of floats in f64, because they are added one by one."""
    values = _values(x)
    kind = values.dtype if x.dtype.is_integer else np.float64
    store(out, np.cumsum(values, axis=dim, dtype=kind))


def _values(x: Tensor) -> np.ndarray:
    """Integers as they are; floats in f32 or f64, where ml_dtypes' own ufuncs skip NaN."""
    return x.array if x.dtype.is_integer else wide(x)


def _rows(x: Tensor, axes: tuple[int, ...]) -> np.ndarray:
    """
    The elements with the reduced dimensions as one, the last, contiguous.

    Numpy adds pairwise along such a dimension alone; along others it adds one by one.
    """
    values = _values(x)
    kept = [d for d in range(values.ndim) if d not in axes]
    count = math.prod(values.shape[d] for d in axes)
    rows = values.transpose(*kept, *axes).reshape(*(values.shape[d] for d in kept), count)
    return np.ascontiguousarray(rows)


def _mean(rows: np.ndarray) -> np.ndarray:
    """The mean of each row, as a column."""
    return np.asarray(rows.sum(axis=-1, keepdims=True) / rows.dtype.type(rows.shape[-1]))


OPS = [
    OpImpl(op="sum", fn=sum, dtypes=PLAIN),
    OpImpl(op="prod", fn=prod, dtypes=PLAIN),
    OpImpl(op="mean", fn=mean, dtypes=FLOATS),
    OpImpl(op="var", fn=var, dtypes=FLOATS),
    OpImpl(op="min", fn=min, dtypes=PLAIN),
    OpImpl(op="max", fn=max, dtypes=PLAIN),
    OpImpl(op="argmax", fn=argmax, dtypes=PLAIN),
    OpImpl(op="argmin", fn=argmin, dtypes=PLAIN),
    OpImpl(op="cumsum", fn=cumsum, dtypes=PLAIN),
]
