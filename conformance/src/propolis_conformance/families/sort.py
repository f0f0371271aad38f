"""Orders."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.inputs import at_any_rank
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}

_X = {"x": T("r s c")}


def order(x: Array, dim: int = -1, *, descending: bool = False) -> Array:
    """What sorts each row: Python's own stable sort, NaN above every number."""
    rows = np.moveaxis(x, dim, -1)
    places = np.empty(rows.shape, np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        keys = [(n != n, 0 if n != n else n) for n in rows[at].tolist()]  # noqa: PLR0124  (NaN)
        places[at] = sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)
    return np.moveaxis(places, -1, dim)


def _sort(x: Array, dim: int = -1, *, descending: bool = False) -> Array:
    return np.take_along_axis(x, order(x, dim, descending=descending), dim)


_ORDERS: AttributeSets = (
    {},
    {"dim": 0},
    {"dim": -2},
    {"descending": True},
    {"descending": True, "dim": 1},
)
_SORTED = at_any_rank(Recipe(_X, _ORDERS, ties=True, extreme=True), least=3)
OPS["sort"] = OpInfo(_sort, _SORTED)
OPS["argsort"] = OpInfo(order, _SORTED)


def _topk(x: Array, k: int, dim: int = -1, *, largest: bool = True) -> tuple[Array, Array]:
    # NaN is the largest of all: smallest first, it comes last.
    places = np.take(order(x, dim, descending=largest), np.arange(k), dim)
    return np.take_along_axis(x, places, dim), places


_BEST = (
    {"k": 1},
    {"k": 3, "dim": 0},
    {"k": 2, "largest": False},
    {"k": 5, "dim": 1, "largest": False},
    {"k": 0},
)
OPS["topk"] = OpInfo(_topk, (Recipe(_X, _BEST, ties=True, extreme=True),))
