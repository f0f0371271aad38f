"""The least and the most along dimensions, and where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._reductions import Reduction
from propolis_rocm_kernels._reductions import over_dims


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor

MODULE: Final = Module("reduce_extreme")


def _implement_arg(name: str) -> OpImpl:
    reduce = Reduction(MODULE, name, dtypes.PLAIN)

    def run(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
        reduce(out, x, (dim % len(x.layout.shape),))

    return implementation(name, run, dtypes.PLAIN, in_place=False)


OPS: Final = [
    over_dims(MODULE, "min", dtypes.PLAIN),
    over_dims(MODULE, "max", dtypes.PLAIN),
    _implement_arg("argmax"),
    _implement_arg("argmin"),
]
