"""Normalisation of rows and of groups of channels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo
from propolis_conformance.rounding import rounded


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}

_OTHER_RANKS = ("c", "r c", "t r s c")
_NORMED = {"x": T("r s c"), "weight": T("c")}


def _rms_norm(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    """Each row over its root mean square."""
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


OPS["rms_norm"] = OpInfo(
    _rms_norm,
    (
        Recipe(_NORMED, ({}, {"eps": 1e-3}), deep={"r": 1, "s": 1, "c": 2100}),
        *(Recipe({**_NORMED, "x": T(dims)}, brief=True) for dims in _OTHER_RANKS),
    ),
)


def _add_rms_norm(
    x: Array, residual: Array, weight: Array, eps: float = 1e-5, *, kind: DType
) -> tuple[Array, Array]:
    """The sum is a result too: what is normed is what its dtype made of it."""
    total = rounded(x + residual, kind)
    return total, _rms_norm(total, weight, eps)


_SUMMED = {"x": T("r s c"), "residual": T("r s c"), "weight": T("c")}
OPS["add_rms_norm"] = OpInfo(
    recipes=(Recipe(_SUMMED, ({}, {"eps": 1e-3})),),
    truth_of_call=lambda values, _: partial(_add_rms_norm, kind=values["x"].dtype),
)


# Infinite times what differs from a mean by rounding alone is anything.
_WEIGHT = T("c", domain="bounded")


def _layer_norm(x: Array, weight: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * weight
    return np.asarray(y if bias is None else y + bias)


OPS["layer_norm"] = OpInfo(
    _layer_norm,
    (
        Recipe(
            {"x": T("r s c"), "weight": _WEIGHT, "bias": T("c")},
            ({}, {"bias": None}, {"eps": 0.1}),
        ),
        *(
            Recipe({"x": T(dims), "weight": _WEIGHT, "bias": T("c")}, brief=True)
            for dims in _OTHER_RANKS
        ),
        Recipe({"x": T("r s c", domain="far"), "weight": _WEIGHT, "bias": T("c")}, brief=True),
    ),
)


def _group_norm(
    x: Array, weight: Array | None, bias: Array | None, groups: int, eps: float = 1e-5
) -> Array:
    if not x.size:
        return x
    parts = x.reshape(x.shape[0], groups, -1)
    d = parts - parts.mean(-1, keepdims=True)
    y = (d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)).reshape(x.shape)
    channels = (-1, *(1,) * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(channels)
    return np.asarray(y if bias is None else y + bias.reshape(channels))


def _group_norm_silu(*args: Any, **kwargs: Any) -> Array:
    y = _group_norm(*args, **kwargs)
    return np.asarray(y / (1 + np.exp(-y)))


_CHANNELS = {"weight": replace(_WEIGHT, dims="c*2"), "bias": T("c*2")}
_GROUPED = (
    {"groups": 2},
    {"groups": 1},
    {"groups": 2, "eps": 0.1},
    {"groups": 2, "bias": None},
    {"groups": 1, "weight": None},
    {"groups": 2, "weight": None, "bias": None},
)
_GROUPS = (
    Recipe({"x": T("n c*2 s"), **_CHANNELS}, _GROUPED),
    Recipe({"x": T("n c*2 h w"), **_CHANNELS}, _GROUPED),
    Recipe({"x": T("n c*2"), **_CHANNELS}, ({"groups": 2},)),
    Recipe({"x": T("n c*2 s", domain="far"), **_CHANNELS}, _GROUPED[:2], brief=True),
)
OPS["group_norm"] = OpInfo(_group_norm, _GROUPS)
OPS["group_norm_silu"] = OpInfo(_group_norm_silu, _GROUPS)
