"""
Reductions over one or more dimensions.

Sums of f16, bf16 and f8 are in f32 or wider and rounded once; of integers they wrap
around.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.errors import ShapeError
from propolis.layout import Shape
from propolis.layout import normalize_dim
from propolis.opspec.infer import expect
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import RELATIVE
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import ROUNDINGS
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


Dims = int | tuple[int, ...] | None
"""One dimension, several, or None for all; negative ones count from the end."""

_REDUCED = {
    "x": "any shape, any plain dtype.",
    "dims": "the dimensions to reduce.",
    "keepdim": "leave them with size 1 instead of dropping them.",
}
_SEARCHED = {
    "x": "rank 1 or more, any plain dtype.",
    "dim": "the dimension to search; negative counts from the end.",
}

_EXACT = dict.fromkeys(dtypes.ALL, EXACT)


@op({"x": PLAIN}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_REDUCED)
def sum(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> Meta:  # noqa: A001
    """
    The sum; of no elements, 0.

    Returns:
        The reduced shape, dtype of ``x``.

    Raises:
        ShapeError: there is no such dimension, or one is named twice.
    """
    return reduced("sum", x.shape, dims, keepdim=keepdim), x.dtype


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes, shared=_REDUCED)
def mean(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> Meta:
    """
    The mean; of no elements, NaN.

    Args:
        x: any shape, a float dtype.

    Returns:
        The reduced shape, dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: there is no such dimension, or one is named twice.
    """
    return reduced("mean", x.shape, dims, keepdim=keepdim), x.dtype


def _factors(f: Callable[..., Any], x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    """Each factor costs a rounding, of which ``ROUNDINGS`` are allowed anyway."""
    product = np.abs(f(x, dims, keepdim=keepdim))
    return np.asarray(product * builtins.max(1.0, x.size / (np.size(product) or 1) / ROUNDINGS))


@op({"x": PLAIN}, tolerance=RELATIVE, magnitude=_factors, shared=_REDUCED)
def prod(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> Meta:
    """
    The product; of no elements, 1.  Integers wrap around.

    Floats are multiplied in f32 (f64 of f64), in any order: what leaves its range on the way
    does not come back.

    Returns:
        The reduced shape, dtype of ``x``.

    Raises:
        ShapeError: there is no such dimension, or one is named twice.
    """
    return reduced("prod", x.shape, dims, keepdim=keepdim), x.dtype


def _deviations(
    f: Callable[..., Any],
    x: Array,
    dims: Dims = None,
    *,
    keepdim: bool = False,
    correction: int = 0,
) -> Array:
    """Each deviation is rounded as the element and the mean are, before it is squared."""
    mean = x.mean(dims, keepdims=True)
    far = np.abs(x - mean)
    terms = far * (far + np.abs(mean))
    # A sample's variance is at most twice the population's, where there is one.
    return np.asarray((1 + (correction > 0)) * terms.mean(dims, keepdims=keepdim))


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=_deviations, shared=_REDUCED)
def var(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False, correction: int = 0) -> Meta:
    """
    The variance: the sum of squared deviations over ``n - correction``.

    Args:
        x: any shape, a float dtype.
        correction: 0 for a whole population, 1 for a sample (Bessel).

    Returns:
        The reduced shape, dtype of ``x``; NaN where ``n <= correction``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: there is no such dimension, or one is named twice.
    """
    return reduced("var", x.shape, dims, keepdim=keepdim), x.dtype


@op({"x": PLAIN}, tolerance=_EXACT, shared=_REDUCED)
def min(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> Meta:  # noqa: A001
    """
    The smallest element; NaN where any is.

    Args:
        dims: the dimensions to reduce, none of them empty.

    Returns:
        The reduced shape, dtype of ``x``.

    Raises:
        ShapeError: there is no such dimension, one is named twice, or one is empty.
    """
    return reduced("min", x.shape, dims, keepdim=keepdim, empty=False), x.dtype


@op({"x": PLAIN}, tolerance=_EXACT, shared=_REDUCED)
def max(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> Meta:  # noqa: A001
    """
    The largest element; NaN where any is.

    Args:
        dims: the dimensions to reduce, none of them empty.

    Returns:
        The reduced shape, dtype of ``x``.

    Raises:
        ShapeError: there is no such dimension, one is named twice, or one is empty.
    """
    return reduced("max", x.shape, dims, keepdim=keepdim, empty=False), x.dtype


@op({"x": PLAIN}, tolerance=_EXACT, shared=_SEARCHED)
def argmax(x: Tensor, /, dim: int = -1) -> Meta:
    """
    The index of the largest element along one dimension; of the first, when several are.

    NaN counts as larger than any number, as in numpy and torch.

    Returns:
        Shape of ``x`` without that dimension, i64.

    Raises:
        DTypeError: ``x`` is in a block format.
        ShapeError: there is no such dimension, or it is empty.
    """
    return _arg("argmax", x, dim)


@op({"x": PLAIN}, tolerance=_EXACT, shared=_SEARCHED)
def argmin(x: Tensor, /, dim: int = -1) -> Meta:
    """
    The index of the smallest element along one dimension; of the first, when several are.

    NaN counts as smaller than any number, as in numpy and torch.

    Returns:
        Shape of ``x`` without that dimension, i64.

    Raises:
        DTypeError: ``x`` is in a block format.
        ShapeError: there is no such dimension, or it is empty.
    """
    return _arg("argmin", x, dim)


@op({"x": PLAIN}, tolerance=ROUNDED, magnitude=of_absolutes)
def cumsum(x: Tensor, /, dim: int = -1) -> Meta:
    """
    The sums of all elements up to each along one dimension, itself included.

    Args:
        x: rank 1 or more, any plain dtype.
        dim: the dimension; negative counts from the end.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is in a block format.
        ShapeError: there is no such dimension.
    """
    normalize_dim("cumsum", dim, len(x.shape))
    return x.shape, x.dtype


def reduced(name: str, shape: Shape, dims: Dims, *, keepdim: bool, empty: bool = True) -> Shape:
    """
    The shape after reducing ``dims``.

    Args:
        name: of the op, for errors.
        shape: before.
        dims: what to reduce.
        keepdim: leave size 1 instead of dropping.
        empty: whether reducing no elements has a result.

    Raises:
        ShapeError: a dimension is absent, named twice, or empty where it must not be.
    """
    which = over(name, shape, dims)
    if not empty and math.prod(shape[d] for d in which) == 0:
        msg = f"{name}: no elements to choose from in dimensions {which} of shape {shape}"
        raise ShapeError(msg)
    if keepdim:
        return tuple(1 if d in which else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in which)


def over(name: str, shape: Shape, dims: Dims) -> tuple[int, ...]:
    """
    The dimensions that ``dims`` means, counted from the front.

    Raises:
        ShapeError: one is absent or named twice.
    """
    rank = len(shape)
    if dims is None:
        return tuple(range(rank))
    wanted = tuple(dims) if isinstance(dims, Iterable) else (dims,)
    which = tuple(normalize_dim(name, d, rank) for d in wanted)
    if len(set(which)) < len(which):
        msg = f"{name}: dims {wanted} name a dimension of shape {shape} twice"
        raise ShapeError(msg)
    return which


def _arg(name: str, x: Tensor, dim: int) -> Meta:
    dim = normalize_dim(name, dim, len(x.shape))
    expect(name, x.shape[dim] > 0, f"dimension {dim} must not be empty", x=x)
    return (*x.shape[:dim], *x.shape[dim + 1 :]), dtypes.i64
