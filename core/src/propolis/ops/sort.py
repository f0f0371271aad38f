"""
Order along one dimension.

Sorting is stable and takes rows of any length.  NaN counts as larger than any number,
as in numpy and torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis.errors import OpError
from propolis.layout import normalize_dim
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.spec import pair_op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


_EXACT = dict.fromkeys(dtypes.ALL, EXACT)


@op({"x": PLAIN}, tolerance=_EXACT)
def sort(x: Tensor, /, dim: int = -1, *, descending: bool = False) -> Meta:
    """
    The elements in order along one dimension.

    Args:
        x: rank 1 or more, any plain dtype.
        dim: the dimension; negative counts from the end.
        descending: largest first; equal elements keep their order all the same.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        ShapeError: there is no such dimension.
    """
    normalize_dim("sort", dim, len(x.shape))
    return x.shape, x.dtype


@op({"x": PLAIN}, tolerance=_EXACT)
def argsort(x: Tensor, /, dim: int = -1, *, descending: bool = False) -> Meta:
    """
    The indices that sort along one dimension; equal elements keep their order.

    Args:
        x: rank 1 or more, any plain dtype.
        dim: the dimension; negative counts from the end.
        descending: largest first; equal elements keep their order all the same.

    Returns:
        Shape of ``x``, i64.

    Raises:
        ShapeError: there is no such dimension.
    """
    normalize_dim("argsort", dim, len(x.shape))
    return x.shape, dtypes.i64


@pair_op({"x": PLAIN}, tolerance=_EXACT)
def topk(x: Tensor, /, k: int, dim: int = -1, *, largest: bool = True) -> tuple[Meta, Meta]:
    """
    The ``k`` largest (or smallest) elements along one dimension, best first.

    Of equal elements the first is taken first.

    Args:
        x: rank 1 or more, any plain dtype.
        k: how many, at most the dimension's size.
        dim: the dimension; negative counts from the end.
        largest: the largest rather than the smallest.

    Returns:
        The elements, dtype of ``x``, and their indices, i64: shape of ``x`` with ``k``
        in place of the dimension's size.

    Raises:
        ShapeError: there is no such dimension.
        OpError: there are fewer than ``k`` elements.
    """
    dim = normalize_dim("topk", dim, len(x.shape))
    if not 0 <= k <= x.shape[dim]:
        msg = f"topk: k {k} must be between 0 and {x.shape[dim]}, the size of dimension {dim}"
        raise OpError(msg)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    return (shape, x.dtype), (shape, dtypes.i64)
