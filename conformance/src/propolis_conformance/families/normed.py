"""Products of the norm of a sum, of weights in blocks and others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.compare import LARGEST
from propolis_conformance.families.matmul import linear
from propolis_conformance.families.rope import rope
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import NotValidError
from propolis_conformance.op_info import OpInfo
from propolis_conformance.rounding import rounded


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from typing import Any

    from propolis.dtypes import DType
    from propolis_conformance.inputs import Value
    from propolis_conformance.op_info import Array


def _product(
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    eps: float = 1e-5,
    *,
    kind: DType,
    gated: bool = False,
) -> tuple[Array, Array]:
    """The sum is a result too, normed as its dtype has it; none gated of what is beyond."""
    total = rounded(x + residual, kind)
    normed = total / np.sqrt((total * total).mean(-1, keepdims=True) + eps) * weight
    y = linear(normed, w)
    if gated:
        if (np.abs(y) > LARGEST[kind.name]).any():
            raise NotValidError
        gate, up = np.split(y, 2, axis=-1)
        y = gate / (1 + np.exp(-gate)) * up
    return total, np.asarray(y)


def _normed(dims: str, rows: str = "n") -> dict[str, T]:
    width = dims.rsplit(maxsplit=1)[-1]
    given = {"x": dims, "residual": dims, "weight": width, "w": f"{rows} {width}"}
    return {name: T(each, domain="bounded") for name, each in given.items()}


_RECIPES: Final = (
    Recipe(_normed("m k"), ({}, {"eps": 1e-3}), deep={"k": 2048, "m": 1}),
    Recipe(_normed("m k", "n*2"), ({"gated": True},), deep={"k": 2048, "m": 1}),
    Recipe(_normed("1 1 k*8"), ({},), brief=True),
    Recipe(_normed("k*8", "n*2"), ({"gated": True},), brief=True),
    # A prompt's rows.  Few blocks: quantising these takes longer than the product.
    Recipe(_normed("40 k", "n*32"), ({}, {"gated": True}), sizes={"n": 2, "k": 3}),
)


def _turned_product(
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    eps: float = 1e-5,
    *,
    kind: DType,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> tuple[Array, Array]:
    """Rotated before it is rounded; none where a number is beyond its dtype on the way."""
    total, y = _product(x, residual, weight, w, eps, kind=kind)
    largest, factor = (np.nanmax(np.abs(each), initial=0) for each in (y, np.stack([cos, sin])))
    if largest > LARGEST[kind.name] or largest * factor > LARGEST["f32"]:
        raise NotValidError
    each = y.reshape(*y.shape[:-1], y.shape[-1] // head_dim, head_dim)
    turned = rope(each[:, :, :heads], positions, cos, sin, interleaved=interleaved)
    both = np.concatenate([turned, each[:, :, heads:]], axis=2)
    return total, both.reshape(y.shape)


def _turned(dims: str, head_dim: int, pairs: int) -> dict[str, T]:
    tables = {name: T(f"r {pairs}", "f32") for name in ("cos", "sin")}
    at = {"positions": T(dims.rpartition(" ")[0], "i32", domain="index:r")}
    return {**_normed(dims, f"h*{head_dim}"), **at, **tables}


# All of a head is rotated, or its first six elements; of all heads, or of the first, or of none.
_TURNED: Final = tuple(
    Recipe(
        _turned(dims, head_dim, pairs),
        tuple(
            {"heads": heads, "head_dim": head_dim, **way}
            for heads in some
            for way in ({}, {"interleaved": True})
        ),
        deep={"k": 2048, "b": 1, "t": 1},
    )
    for dims, head_dim, pairs, some in (
        ("b t k", 8, 4, (1, 0)),
        ("1 1 k*8", 8, 3, (1,)),
        ("1 1 k*8", 16, 8, (1,)),
    )
)


def _kept_product(
    cache: Array,
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    slots: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    eps: float = 1e-5,
    *,
    kind: DType,
    heads: int,
    interleaved: bool = False,
) -> tuple[Array, Array, Array]:
    """As the one that is rotated, some of which goes into a cache."""
    both, head_dim = cache.shape[2:]
    rows, tables = (x, residual, weight, w), (positions, cos, sin)
    how: Any = {"kind": kind, "heads": heads + both // 2, "head_dim": head_dim}
    total, y = _turned_product(*rows, *tables, eps, interleaved=interleaved, **how)
    each = y.reshape(*y.shape[:-1], heads + both, head_dim)
    kept = cache.copy()
    for b, t in np.ndindex(slots.shape):
        kept[b, slots[b, t]] = each[b, t, heads:]
    return total, each[:, :, :heads], kept


def _keeping(
    dims: str, head_dim: int, pairs: int, heads: int, both: int, *kept: str
) -> dict[str, T]:
    batch, tokens, _ = dims.split()
    tables = {name: T(f"p {pairs}", "f32") for name in ("cos", "sin")}
    at = {
        name: T(f"{batch} {tokens}", "i32", domain="distinct:p") for name in ("slots", "positions")
    }
    rows = str((heads + both) * head_dim)
    cache = {"cache": T(f"{batch} p {both} {head_dim}", *kept)}
    return {**cache, **_normed(dims, rows), **at, **tables}


# Queries and keys of three heads and one, of one and two, of none and one; kept in the dtype of x,
# or in 16 bits of f32.
_KEPT: Final = (
    *(
        Recipe(
            _keeping(dims, head_dim, pairs, heads, both, *kept),
            ({"heads": heads}, {"heads": heads, "interleaved": True}),
            sizes={"p": 7, "t": 3, **({"k": 3} if dims == "b t k" else {})},
            deep={"k": 256} if dims != "b t k" else {"k": 2048, "b": 1, "t": 1},
            brief=(dims, *kept) not in (("b t k",), ("b t k", "bf16"), ("1 1 k*8",)),
        )
        for dims, head_dim, pairs, heads, both in (
            ("b t k", 8, 4, 3, 2),
            ("1 1 k*8", 8, 3, 1, 4),
            ("1 1 k*8", 16, 8, 0, 2),
        )
        for kept in ((), ("f16",), ("bf16",))
    ),
    # A prompt's rows.
    Recipe(_keeping("1 40 k", 8, 4, 3, 2, "f16"), ({"heads": 3},), sizes={"p": 47, "k": 3}),
)


def _info(truth: Callable[..., Any], recipes: tuple[Recipe, ...]) -> OpInfo:
    def truth_of_call(values: Mapping[str, Value], _: Mapping[str, Any]) -> Callable[..., Any]:
        return partial(truth, kind=values["x"].dtype)

    return OpInfo(recipes=recipes, truth_of_call=truth_of_call)


OPS: Final = {
    f"add_rms_norm_{product}{turned}": _info(truth, recipes)
    for product in ("qmatmul", "linear")
    for turned, truth, recipes in (
        ("", _product, _RECIPES),
        ("_rope", _turned_product, _TURNED),
        ("_rope_kv_append", _kept_product, _KEPT),
    )
}
