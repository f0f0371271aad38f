"""Sums over dimensions, and what is made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.ops.reduce import over
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._reductions import Reduction
from propolis_rocm_kernels._reductions import memory_of
from propolis_rocm_kernels._reductions import over_dims


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.reduce import Dims

MODULE: Final = Module("reduce")

_VAR: Final = Reduction(MODULE, "var", dtypes.FLOATS)


def var(
    out: Tensor, x: Tensor, /, dims: Dims = None, *, keepdim: bool = False, correction: int = 0
) -> None:
    """The sum of squared deviations over ``n - correction``."""
    del keepdim
    _VAR(out, x, over("var", x.layout.shape, dims), correction)


def _memory(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False, correction: int = 0) -> int:
    del keepdim, correction
    return memory_of(x, over("var", x.layout.shape, dims))


OPS: Final = [
    over_dims(MODULE, "sum", dtypes.PLAIN),
    over_dims(MODULE, "prod", dtypes.PLAIN),
    over_dims(MODULE, "mean", dtypes.FLOATS),
    implementation("var", var, dtypes.FLOATS, in_place=False, workspace=_memory),
]
