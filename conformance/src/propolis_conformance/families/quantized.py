"""Block formats: numbers to blocks and back, and products with weights in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_conformance import blocks
from propolis_conformance.families.matmul import linear
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


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
        Recipe(
            {"x": T("b m k", domain="bounded"), "w": T("n k")},
            deep={"k": 2048, "b": 1, "m": 3},  # few rows, which many have kernels of their own for
        ),
        Recipe({"x": T("k", domain="bounded"), "w": T("n k")}),
    ),
)
