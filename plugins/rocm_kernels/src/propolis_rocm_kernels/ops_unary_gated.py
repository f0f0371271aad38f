"""Activations of one tensor, times another."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import Elementwise
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor

MODULE: Final = Module("unary_gated")


def _implement(name: str) -> OpImpl:
    heavy = bool(MODULE.constant(f"HEAVY_{name}", value=True))
    kernels = {
        dtype: Elementwise(MODULE, f"{name}_{dtype.name}", 2, dtype.block_bytes, heavy=heavy)
        for dtype in dtypes.FLOATS
    }

    def run(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
        kernels[gate.dtype](out, gate, up)

    return implementation(name, run, dtypes.FLOATS)


OPS: Final = [_implement("silu_mul"), _implement("gelu_mul"), _implement("gelu_erf_mul")]
