"""Softmax and its logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.dtypes import FLOATS
from propolis.layout import normalize_dim
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import RELATIVE


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


def _shares(f: Callable[..., Any], x: Array, dim: int = -1) -> Array:
    """The argument of an exponential is rounded: its result loses that, relatively."""
    return np.asarray(f(x, dim) * (1 + _below(x, dim) / 32))


def _logarithms(f: Callable[..., Any], x: Array, dim: int = -1) -> Array:
    """
    What is below the maximum, and the logarithm of a sum that is at least 1.

    The sum's own rounding, relatively, is the logarithm's absolutely: what is below it is lost.
    """
    below = _below(x, dim)
    return np.asarray(1 + below + np.abs(f(x, dim) + below))


def _below(x: Array, dim: int) -> Array:
    return np.asarray(x.max(dim, keepdims=True) - x if x.shape[dim] else x)


@op({"x": FLOATS}, tolerance=RELATIVE, magnitude=_shares)
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


@op({"x": FLOATS}, tolerance=RELATIVE, magnitude=_logarithms)
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
