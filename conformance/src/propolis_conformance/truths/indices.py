"""Truths of reading and writing by index: one element, or one slice, at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

Array = np.ndarray[Any, Any]


def _masked(ids: Array) -> Array:
    """The largest number of the dtype stands for no index."""
    return np.asarray(ids == np.iinfo(ids.dtype).max)


def _index_select(x: Array, ids: Array, dim: int = 0) -> Array:
    dim %= x.ndim
    y = np.zeros((*x.shape[:dim], len(ids), *x.shape[dim + 1 :]), x.dtype)
    before: Any = (slice(None),) * dim
    for place, (i, absent) in enumerate(zip(ids, _masked(ids), strict=True)):
        if not absent:
            y[*before, place] = x[*before, i]
    return y


def _embedding(ids: Array, table: Array, dtype: Any = None) -> Array:
    del dtype  # the result is rounded to it
    return _index_select(table, ids.reshape(-1)).reshape(*ids.shape, table.shape[1])


def _gather(x: Array, ids: Array, dim: int = -1) -> Array:
    y = np.zeros(ids.shape, x.dtype)
    absent = _masked(ids)
    for at in np.ndindex(ids.shape):
        if not absent[at]:
            y[at] = x[_there(at, ids, dim)]
    return y


def _scatter(target: Array, ids: Array, source: Array, dim: int = -1) -> Array:
    y, absent = target.copy(), _masked(ids)
    for at in np.ndindex(ids.shape):  # in order: the last stays
        if not absent[at]:
            y[_there(at, ids, dim)] = source[at]
    return y


def _scatter_add(target: Array, ids: Array, source: Array, dim: int = -1) -> Array:
    y, absent = target.copy(), _masked(ids)
    for at in np.ndindex(ids.shape):
        if not absent[at]:
            y[_there(at, ids, dim)] += source[at]
    return y


def _there(at: tuple[int, ...], ids: Array, dim: int) -> tuple[int, ...]:
    dim %= ids.ndim
    return (*at[:dim], int(ids[at]), *at[dim + 1 :])


def _index_add(target: Array, ids: Array, source: Array, dim: int = 0) -> Array:
    y = target.copy()
    before: Any = (slice(None),) * (dim % target.ndim)
    for place, (i, absent) in enumerate(zip(ids, _masked(ids), strict=True)):
        if not absent:
            y[*before, i] += source[*before, place]
    return y


def _kv_append(cache: Array, x: Array, positions: Array) -> Array:
    y = cache.copy()
    for b, t in np.ndindex(positions.shape):
        y[b, positions[b, t]] = x[b, t]
    return y


def _rope(
    x: Array, positions: Array, cos: Array, sin: Array, *, interleaved: bool = False
) -> Array:
    y, pairs = x.copy(), cos.shape[1]
    first = np.arange(pairs) * 2 if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    if not positions.size:
        return y
    c, s = cos[positions][:, :, None], sin[positions][:, :, None]
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    "index_select": _index_select,
    "embedding": _embedding,
    "gather": _gather,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "index_add": _index_add,
    "kv_append": _kv_append,
    "rope": _rope,
}
