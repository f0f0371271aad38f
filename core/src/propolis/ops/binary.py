"""Elementwise ops of two tensors, broadcast by numpy's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import PLAIN
from propolis.ops._infer import broadcast
from propolis.ops._infer import same_dtype
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"a": PLAIN})
def add(a: Tensor, b: Tensor, /) -> Meta:
    """
    ``a + b``, elementwise; integers wrap around.

    Args:
        a: any shape, any plain dtype.
        b: a shape that broadcasts with ``a``'s, same dtype.

    Returns:
        The broadcast shape, dtype of ``a``.

    Raises:
        DTypeError: the dtypes differ, or are block formats.
        ShapeError: the shapes do not broadcast.
    """
    return _elementwise("add", a, b)


@op({"a": PLAIN})
def mul(a: Tensor, b: Tensor, /) -> Meta:
    """
    ``a * b``, elementwise; integers wrap around.

    Args:
        a: any shape, any plain dtype.
        b: a shape that broadcasts with ``a``'s, same dtype.

    Returns:
        The broadcast shape, dtype of ``a``.

    Raises:
        DTypeError: the dtypes differ, or are block formats.
        ShapeError: the shapes do not broadcast.
    """
    return _elementwise("mul", a, b)


def _elementwise(name: str, a: Tensor, b: Tensor) -> Meta:
    if a.dtype is not b.dtype:
        same_dtype(name, a=a, b=b)
    return broadcast(name, a.layout.shape, b.layout.shape), a.dtype
