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


def rope(x: Array, positions: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    """The truth of ``rope``."""
    y, pairs = x.copy(), cos.shape[1]
    first = np.arange(pairs) * 2 if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    if not positions.size:
        return y
    c, s = cos[positions][:, :, None], sin[positions][:, :, None]
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


def _rope_kv_append(
    cache: Array,
    x: Array,
    slots: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    *,
    interleaved: bool = False,
) -> Array:
    y, heads = cache.copy(), x.shape[2] // 2
    new = x.copy()
    new[:, :, :heads] = rope(x[:, :, :heads], positions, cos, sin, interleaved=interleaved)
    for b, t in np.ndindex(slots.shape):
        y[b, slots[b, t]] = new[b, t]
    return y


_TABLES = {"cos": T("r e", "f32"), "sin": T("r e", "f32")}
_TURNS = {"positions": T("b t", domain="index:r"), **_TABLES}
_WAYS: AttributeSets = ({}, {"interleaved": True})
OPS: Final = {
    "rope": OpInfo(
        rope,
        # Whole rows are turned, or two elements of three.
        tuple(Recipe({"x": T(f"b t h e*{parts}"), **_TURNS}, _WAYS) for parts in (2, 3)),
    ),
    "rope_kv_append": OpInfo(
        _rope_kv_append,
        tuple(
            Recipe(
                {
                    "cache": T(f"b p h*2 e*{parts}"),
                    "x": T(f"b t h*2 e*{parts}", *given),
                    "slots": T("b t", "i32", domain="distinct:p"),
                    # As slots are, which may be the same tensor.
                    "positions": T("b t", "i32", domain="distinct:p"),
                    "cos": T("p e", "f32"),
                    "sin": T("p e", "f32"),
                },
                _WAYS,
                sizes={"p": 7, "t": 3},
            )
            for parts in (2, 3)
            for given in (("f32",), ())  # of the cache's dtype
        ),
    ),
}
