"""Reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis.layout import normalize_dim
from propolis.ops._infer import expect
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"x": PLAIN}, tolerance={})
def argmax(x: Tensor, /, dim: int = -1) -> Meta:
    """
    The index of the largest element along one dimension; of the first, when several are.

    NaN counts as larger than any number, as in numpy and torch.

    Args:
        x: rank 1 or more, any plain dtype.
        dim: the dimension to search; negative counts from the end.

    Returns:
        Shape of ``x`` without that dimension, i64.

    Raises:
        DTypeError: ``x`` is in a block format.
        ShapeError: there is no such dimension, or it is empty.
    """
    dim = normalize_dim("argmax", dim, len(x.shape))
    expect("argmax", x.shape[dim] > 0, f"dimension {dim} must not be empty", x=x)
    return (*x.shape[:dim], *x.shape[dim + 1 :]), dtypes.i64
