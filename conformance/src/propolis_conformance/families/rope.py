"""Rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array


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


_TABLES = {"cos": T("r e", "f32"), "sin": T("r e", "f32")}
_TURNS = {"positions": T("b t", domain="index:r"), **_TABLES}
_WAYS: AttributeSets = ({}, {"interleaved": True})
OPS: Final = {
    "rope": OpInfo(
        _rope,
        # Whole rows are turned, or two elements of three.
        tuple(Recipe({"x": T(f"b t h e*{parts}"), **_TURNS}, _WAYS) for parts in (2, 3)),
    )
}
