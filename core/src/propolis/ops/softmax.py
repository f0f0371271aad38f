"""Softmax and its logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import FLOATS
from propolis.layout import normalize_dim
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"x": FLOATS})
def softmax(x: Tensor, /, dim: int = -1) -> Meta:
    """
    ``exp(x - max(x)) / sum(exp(x - max(x)))`` over one dimension.

    A row that is -inf throughout gives NaN, as in torch.

    Args:
        x: rank 1 or more, a float dtype; computed in f32 or wider.
        dim: the dimension that sums to 1; negative counts from the end.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: there is no such dimension.
    """
    normalize_dim("softmax", dim, len(x.shape))
    return x.shape, x.dtype


@op({"x": FLOATS})
def log_softmax(x: Tensor, /, dim: int = -1) -> Meta:
    """
    ``x - max(x) - log(sum(exp(x - max(x))))`` over one dimension.

    Args:
        x: rank 1 or more, a float dtype; computed in f32 or wider.
        dim: the dimension whose exponentials sum to 1; negative counts from the end.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
        ShapeError: there is no such dimension.
    """
    normalize_dim("log_softmax", dim, len(x.shape))
    return x.shape, x.dtype
