"""Reading and writing by index: one element, or one slice, at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}


def _masked(ids: Array) -> Array:
    """The largest number of the dtype stands for no index."""
    return np.asarray(ids == np.iinfo(ids.dtype).max)


def _there(at: tuple[int, ...], ids: Array, dim: int) -> tuple[int, ...]:
    dim %= ids.ndim
    return (*at[:dim], int(ids[at]), *at[dim + 1 :])


def _index_select(x: Array, ids: Array, dim: int = 0) -> Array:
    dim %= x.ndim
    y = np.zeros((*x.shape[:dim], len(ids), *x.shape[dim + 1 :]), x.dtype)
    before: Any = (slice(None),) * dim
    for place, (i, absent) in enumerate(zip(ids, _masked(ids), strict=True)):
        if not absent:
            y[*before, place] = x[*before, i]
    return y


OPS["index_select"] = OpInfo(
    _index_select,
    (
        Recipe({"x": T("v s c"), "ids": T("n", domain="index:v")}),
        Recipe({"x": T("s v c"), "ids": T("n", domain="masked:v")}, ({"dim": 1}, {"dim": -2})),
        Recipe({"x": T("s c v"), "ids": T("n", domain="masked:v")}, ({"dim": -1},)),
    ),
)


def _embedding(ids: Array, table: Array, dtype: Any = None) -> Array:
    del dtype  # the result is rounded to it
    return _index_select(table, ids.reshape(-1)).reshape(*ids.shape, table.shape[1])


_ROUNDED: AttributeSets = ({}, {"dtype": dtypes.f16}, {"dtype": dtypes.f32})
OPS["embedding"] = OpInfo(
    _embedding,
    (
        Recipe({"ids": T("r s", domain="index:v"), "table": T("v c")}, _ROUNDED),
        Recipe({"ids": T("r s", domain="masked:v"), "table": T("v c")}),
    ),
)


def _gather(x: Array, ids: Array, dim: int = -1) -> Array:
    y = np.zeros(ids.shape, x.dtype)
    absent = _masked(ids)
    for at in np.ndindex(ids.shape):
        if not absent[at]:
            y[at] = x[_there(at, ids, dim)]
    return y


OPS["gather"] = OpInfo(
    _gather,
    (
        Recipe({"x": T("r v"), "ids": T("r n", domain="index:v")}),
        Recipe({"x": T("v c*2 s"), "ids": T("n c s", domain="masked:v")}, ({"dim": 0},)),
        Recipe({"x": T("r v c"), "ids": T("r n c", domain="masked:v")}, ({"dim": 1},)),
    ),
)


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


def _written(domain: str) -> tuple[Recipe, ...]:
    """Elements of a target by index: along the last, the first and a middle dimension."""
    ids, same = f"{domain}:v", "=target"
    return (
        Recipe(
            {"target": T("r v"), "ids": T("r n", domain=ids), "source": T("r n", same)},
            sizes={"v": 7, "n": 5},
        ),
        Recipe(
            {"target": T("v c*2"), "ids": T("n c", domain=ids), "source": T("n c", same)},
            ({"dim": 0},),
            sizes={"v": 7, "n": 5},
        ),
        Recipe(
            {"target": T("r v c"), "ids": T("r n c", domain=ids), "source": T("r n c", same)},
            ({"dim": -2},),
            sizes={"v": 7, "n": 5},
        ),
    )


# "masked" repeats indices too: five of seven places, drawn freely.
_SOME = _written("masked")
OPS["scatter"] = OpInfo(_scatter, (_written("distinct")[0], *_SOME))
OPS["scatter_add"] = OpInfo(_scatter_add, _SOME)


def _index_add(target: Array, ids: Array, source: Array, dim: int = 0) -> Array:
    y = target.copy()
    before: Any = (slice(None),) * (dim % target.ndim)
    for place, (i, absent) in enumerate(zip(ids, _masked(ids), strict=True)):
        if not absent:
            y[*before, i] += source[*before, place]
    return y


_SLICES = {"ids": T("n", domain="masked:v")}
OPS["index_add"] = OpInfo(
    _index_add,
    (
        Recipe({"target": T("v s c"), **_SLICES, "source": T("n s c", "=target")}),
        Recipe({"target": T("s v c"), **_SLICES, "source": T("s n c", "=target")}, ({"dim": 1},)),
        Recipe({"target": T("s c v"), **_SLICES, "source": T("s c n", "=target")}, ({"dim": -1},)),
    ),
)
