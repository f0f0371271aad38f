"""Ops that move or write elements: copies, constants, and places in a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.inputs import at_any_rank
from propolis_conformance.integers import saturated
from propolis_conformance.integers import wrapped
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}

_TARGET = {"target": T("r s c")}

OPS["copy"] = OpInfo(
    lambda x: x,
    at_any_rank(Recipe({"x": T("r s c")}, ties=True, extreme=True), least=1),
    as_bytes=True,
)

OPS["assign"] = OpInfo(
    lambda target, source: np.broadcast_to(source, target.shape),
    (
        Recipe({**_TARGET, "source": T("s c", "=target")}, overwrites=True),
        *at_any_rank(
            Recipe({**_TARGET, "source": T("r s c", "=target")}, overwrites=True), least=1
        ),
        Recipe({**_TARGET, "source": T("r 1 1", "=target")}, overwrites=True),
        Recipe({**_TARGET, "source": T("r 1 c", "=target")}, overwrites=True),
    ),
    as_bytes=True,
)


def _fill(target: Array, value: float) -> Array:
    if target.dtype.kind in "iu":
        value = saturated(value, target.dtype)
    return np.full_like(target, value)


_FILLS = (3.0, 0.1, -1e9, float("inf"), float("nan"))
OPS["fill"] = OpInfo(
    _fill, at_any_rank(Recipe(_TARGET, tuple({"value": v} for v in _FILLS), overwrites=True))
)


def _arange(target: Array, start: float = 0, step: float = 1) -> Array:
    places = np.arange(target.size)
    if target.dtype.kind in "iu":
        values = [wrapped(int(start) + int(i) * int(step), target.dtype) for i in places]
        return np.array(values, target.dtype).reshape(target.shape)
    return np.asarray(start + places * float(step)).reshape(target.shape)


_ARANGES: AttributeSets = (
    {},
    {"start": 2.0, "step": 3.0},
    {"start": 100, "step": -7},
)
OPS["arange"] = OpInfo(_arange, (Recipe(_TARGET, _ARANGES, overwrites=True),))


def _kv_append(cache: Array, x: Array, positions: Array) -> Array:
    y = cache.copy()
    for b, t in np.ndindex(positions.shape):
        y[b, positions[b, t]] = x[b, t]
    return y


_APPENDED = {
    "cache": T("b p h d"),
    "x": T("b t h d", "=cache"),
    "positions": T("b t", domain="distinct:p"),
}
OPS["kv_append"] = OpInfo(_kv_append, (Recipe(_APPENDED, sizes={"p": 7, "t": 3}),), as_bytes=True)
