"""Reductions, places of the extremes, and cumulative sums."""

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

    Dims = int | tuple[int, ...] | None

OPS: Final[dict[str, OpInfo]] = {}

_X = {"x": T("r s c")}
_REDUCED: AttributeSets = (
    {},
    {"dims": -1},
    {"dims": 0},
    {"dims": (1,), "keepdim": True},
    {"dims": (0, 2), "keepdim": True},
    {"dims": (-1, 0)},
    {"keepdim": True},
    {"dims": ()},
)


def _min(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    return np.asarray(np.min(x, dims, keepdims=keepdim))


def _max(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    return np.asarray(np.max(x, dims, keepdims=keepdim))


_EXTREMES = at_any_rank(Recipe(_X, _REDUCED, ties=True, extreme=True), least=3)
OPS["min"] = OpInfo(_min, _EXTREMES)
OPS["max"] = OpInfo(_max, _EXTREMES)


def _sum(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    kind = x.dtype if x.dtype.kind in "iu" else None  # integers wrap in their own dtype
    return np.asarray(np.sum(x, dims, kind, keepdims=keepdim))


def _prod(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    kind = x.dtype if x.dtype.kind in "iu" else None  # integers wrap in their own dtype
    return np.asarray(np.prod(x, dims, kind, keepdims=keepdim))


def _mean(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    return np.asarray(np.mean(x, dims, keepdims=keepdim))


_SUMS = at_any_rank(Recipe(_X, _REDUCED, deep={"r": 1, "s": 2, "c": 2100}), least=3)
OPS["sum"] = OpInfo(_sum, _SUMS)
OPS["prod"] = OpInfo(_prod, at_any_rank(Recipe(_X, _REDUCED), least=3))
OPS["mean"] = OpInfo(_mean, _SUMS)


def _var(x: Array, dims: Dims = None, *, keepdim: bool = False, correction: int = 0) -> Array:
    count = np.sum(np.ones_like(x), dims, keepdims=keepdim) - correction
    far = x - x.mean(dims, keepdims=True)
    total = (far * far).sum(dims, keepdims=keepdim)
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)


_CORRECTED: AttributeSets = ({"dims": -1, "correction": 1}, {"correction": 70})
OPS["var"] = OpInfo(_var, at_any_rank(Recipe(_X, (*_REDUCED[:-1], *_CORRECTED)), least=3))


_DIMS: AttributeSets = ({}, {"dim": 0}, {"dim": -2})
_PLACES = at_any_rank(Recipe(_X, _DIMS, ties=True, extreme=True), least=3)
OPS["argmax"] = OpInfo(lambda x, dim=-1: np.argmax(x, dim), _PLACES)
OPS["argmin"] = OpInfo(lambda x, dim=-1: np.argmin(x, dim), _PLACES)


def _cumsum(x: Array, dim: int = -1) -> Array:
    return np.cumsum(x, dim, x.dtype)


OPS["cumsum"] = OpInfo(
    _cumsum, at_any_rank(Recipe(_X, _DIMS, deep={"r": 1, "s": 1, "c": 2100}), least=3)
)
