"""Block formats: numbers to blocks and back, and products with weights in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis_conformance import blocks
from propolis_conformance.families.matmul import linear
from propolis_conformance.families.rope import rope
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo
from propolis_conformance.rounding import rounded


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis.dtypes import DType
    from propolis_conformance.inputs import Value
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}


def _dequantize(x: Array, dtype: DType | None = None) -> Array:
    """Blocks became numbers with all other tensors; the result is rounded to its dtype."""
    del dtype
    return x


_OUT = tuple({"dtype": d} for d in dtypes.ALL if d in dtypes.FLOATS)
OPS["dequantize"] = OpInfo(_dequantize, (Recipe({"x": T("r c")}, _OUT), Recipe({"x": T("b r c")})))


def _quantize_to(
    _: Mapping[str, Value], attributes: Mapping[str, Any]
) -> Callable[..., Array] | None:
    """The bits of the K and IQ formats are what the CPU reference says."""
    return blocks.quantize if blocks.quantizes(attributes["dtype"]) else None


_BLOCKS = tuple({"dtype": d} for d in dtypes.ALL if d.is_block)
OPS["quantize"] = OpInfo(
    # Of infinities (which larger f64 are in f32) and of what has no inverse, none is defined.
    recipes=(Recipe({"x": T("r c*256", domain="single")}, _BLOCKS, special=False, denormal=False),),
    truth_of_call=_quantize_to,
    own_dtype=True,
)


# Products with weights in blocks are products with what the blocks stand for, but what becomes of
# infinities depends on where a block's scale and offset are applied.
OPS["qmatmul"] = OpInfo(
    linear,
    (
        Recipe({"x": T("m k", domain="bounded"), "w": T("n k")}, deep={"k": 2048, "m": 1}),
        Recipe({"x": T("b m k", domain="bounded"), "w": T("n k")}),
        Recipe({"x": T("k", domain="bounded"), "w": T("n k")}),
    ),
)


def _add_rms_norm_qmatmul(
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> tuple[Array, Array]:
    """The sum is a result too, and normed as its dtype has it."""
    total = rounded(x + residual, dtypes.f32)
    normed = total / np.sqrt((total * total).mean(-1, keepdims=True) + eps) * weight
    y = linear(normed, w)
    if gated:
        gate, up = np.split(y, 2, axis=-1)
        y = gate / (1 + np.exp(-gate)) * up
    return total, np.asarray(y)


def _normed(dims: str, rows: str = "n") -> dict[str, T]:
    row = {name: T(dims, domain="bounded") for name in ("x", "residual")}
    return {**row, "weight": T("k", domain="bounded"), "w": T(f"{rows} k")}


OPS["add_rms_norm_qmatmul"] = OpInfo(
    _add_rms_norm_qmatmul,
    (
        Recipe(_normed("m k"), ({}, {"eps": 1e-3}), deep={"k": 2048, "m": 1}),
        Recipe(_normed("m k", "n*2"), ({"gated": True},), deep={"k": 2048, "m": 1}),
        Recipe(_normed("1 1 k"), ({},)),
        Recipe(_normed("k", "n*2"), ({"gated": True},)),
    ),
)


def _add_rms_norm_qmatmul_rope(
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    eps: float = 1e-5,
    *,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> tuple[Array, Array]:
    """Rotated before it is rounded."""
    total, y = _add_rms_norm_qmatmul(x, residual, weight, w, eps)
    each = y.reshape(*y.shape[:-1], y.shape[-1] // head_dim, head_dim)
    turned = rope(each[:, :, :heads], positions, cos, sin, interleaved=interleaved)
    both = np.concatenate([turned, each[:, :, heads:]], axis=2)
    return total, both.reshape(y.shape)


def _turned(dims: str, head_dim: int, pairs: int) -> dict[str, T]:
    tables = {name: T(f"r {pairs}", "f32") for name in ("cos", "sin")}
    at = {"positions": T(dims.removesuffix(" k"), "i32", domain="index:r")}
    return {**_normed(dims, f"h*{head_dim}"), **at, **tables}


# All of a head is rotated, or its first six elements; of all heads, or of the first, or of none.
OPS["add_rms_norm_qmatmul_rope"] = OpInfo(
    _add_rms_norm_qmatmul_rope,
    tuple(
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
            ("1 1 k", 8, 3, (1,)),
            ("1 1 k", 16, 8, (1,)),
        )
    ),
)
