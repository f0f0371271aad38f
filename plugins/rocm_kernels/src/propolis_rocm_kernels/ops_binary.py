"""Elementwise ops of two tensors."""

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

MODULE: Final = Module("binary")

SHORT_OPS: Final = "add sub mul maximum minimum"
LONG_OPS: Final = "div pow remainder"
COMPARISONS: Final = "eq ne lt le gt ge"


def _implement(name: str, *, heavy: bool = False) -> OpImpl:
    MODULE.constant(f"HEAVY_{name}", heavy)
    kernels = {
        dtype: Elementwise(MODULE, f"{name}_{dtype.name}", 2, dtype.block_bytes, heavy=heavy)
        for dtype in dtypes.PLAIN
    }

    def run(out: Tensor, a: Tensor, b: Tensor, /) -> None:
        kernels[a.dtype](out, a, b)

    return implementation(name, run, dtypes.PLAIN)


OPS: Final = [
    *(_implement(name) for name in f"{SHORT_OPS} {COMPARISONS}".split()),
    *(_implement(name, heavy=True) for name in LONG_OPS.split()),
]
