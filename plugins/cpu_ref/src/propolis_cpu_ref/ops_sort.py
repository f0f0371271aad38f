"""sort, argsort, topk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import PLAIN
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor


def sort(out: Tensor, x: Tensor, /, dim: int = -1, *, descending: bool = False) -> None:
    """The elements in order."""
    out.array[...] = np.take_along_axis(x.array, order(x, dim, descending=descending), dim)


def argsort(out: Tensor, x: Tensor, /, dim: int = -1, *, descending: bool = False) -> None:
    """The indices of the elements in order."""
    out.array[...] = order(x, dim, descending=descending)


def topk(
    values: Tensor,
    indices: Tensor,
    x: Tensor,
    /,
    k: int,
    dim: int = -1,
    *,
    largest: bool = True,
) -> None:
    """The first ``k`` in order."""
    first = np.take(order(x, dim, descending=largest), np.arange(k), axis=dim)
    indices.array[...] = first
    values.array[...] = np.take_along_axis(x.array, first, dim)


def order(x: Tensor, dim: int, *, descending: bool) -> np.ndarray:
    """Indices that sort along a dimension, equal elements in their order; i64."""
    values = x.array if x.dtype.is_integer else wide(x)
    if not descending:
        return np.argsort(values, axis=dim, kind="stable")
    # Sort the reversed row upwards and read it backwards: ties keep their order.
    backwards = np.argsort(np.flip(values, dim), axis=dim, kind="stable")
    return np.asarray(np.flip(values.shape[dim] - 1 - backwards, dim))


OPS = [
    OpImpl(op="sort", fn=sort, dtypes=PLAIN),
    OpImpl(op="argsort", fn=argsort, dtypes=PLAIN),
    OpImpl(op="topk", fn=topk, dtypes=PLAIN),
]
