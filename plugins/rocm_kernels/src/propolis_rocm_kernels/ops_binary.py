"""Elementwise ops of two tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import Elementwise
from propolis_rocm_kernels._elementwise import record
from propolis_rocm_kernels._kernels import Module


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis import OpImpl
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("binary")

SHORT_OPS: Final = "add sub mul maximum minimum"
LONG_OPS: Final = "div pow"
COMPARISONS: Final = "eq ne lt le gt ge"
GATES: Final = "silu_mul gelu_mul"


def _kernels(name: str, kinds: Collection[DType], *, heavy: bool) -> dict[DType, Elementwise]:
    return {
        dtype: Elementwise(MODULE, f"{name}_{dtype.name}", 2, dtype.block_bytes, heavy=heavy)
        for dtype in kinds
    }


def _implement(name: str, *, heavy: bool = False) -> OpImpl:
    kernels = _kernels(name, dtypes.PLAIN, heavy=heavy)

    def run(out: Tensor, a: Tensor, b: Tensor, /) -> None:
        kernels[a.dtype](out, a, b)

    return record(name, run, dtypes.PLAIN)


def _gate(name: str) -> OpImpl:
    kernels = _kernels(name, dtypes.FLOATS, heavy=True)

    def run(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
        kernels[gate.dtype](out, gate, up)

    return record(name, run, dtypes.FLOATS)


OPS: Final = [
    *(_implement(name) for name in f"{SHORT_OPS} {COMPARISONS}".split()),
    *(_implement(name, heavy=True) for name in LONG_OPS.split()),
    *(_gate(name) for name in GATES.split()),
]
