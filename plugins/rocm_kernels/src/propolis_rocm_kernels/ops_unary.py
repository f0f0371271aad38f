"""Elementwise ops of one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import Elementwise
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_fill import copy


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis import OpImpl
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("unary")

# Of floats alone, and long.
FLOAT_OPS: Final = (
    "exp expm1 log log1p sin cos tanh sqrt rsqrt recip erf "
    "sigmoid silu gelu gelu_erf quick_gelu softplus"
)
# Of integers too, and short.
PLAIN_OPS: Final = "abs neg sqr relu sign"
# Whole numbers round to themselves: those are copies.
ROUNDING_OPS: Final = "floor ceil trunc round"


def _implement(name: str, kinds: Collection[DType], *, heavy: bool) -> OpImpl:
    MODULE.constant(f"HEAVY_{name}", heavy)
    kernels = {
        dtype: Elementwise(MODULE, f"{name}_{dtype.name}", 1, dtype.block_bytes, heavy=heavy)
        for dtype in kinds
    }

    def run(out: Tensor, x: Tensor, /) -> None:
        kernels[x.dtype](out, x)

    return implementation(name, run, kinds)


def _round_whole(name: str) -> OpImpl:
    def run(out: Tensor, x: Tensor, /) -> None:
        copy(out, x)

    return implementation(name, run, dtypes.INTEGERS)


OPS: Final = [
    *(_implement(name, dtypes.FLOATS, heavy=True) for name in FLOAT_OPS.split()),
    *(_implement(name, dtypes.PLAIN, heavy=False) for name in PLAIN_OPS.split()),
    *(_implement(name, dtypes.FLOATS, heavy=False) for name in ROUNDING_OPS.split()),
    *(_round_whole(name) for name in ROUNDING_OPS.split()),
]
