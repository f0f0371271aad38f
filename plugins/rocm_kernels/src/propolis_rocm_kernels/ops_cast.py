"""Conversion between dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import Elementwise
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_fill import copy


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("cast")

_CAST: Final = {
    (a, b): Elementwise(MODULE, f"{a.name}_{b.name}", 1, max(a.block_bytes, b.block_bytes))
    for a in dtypes.PLAIN
    for b in dtypes.PLAIN
    if a is not b
}


def cast(out: Tensor, x: Tensor, dtype: DType, /) -> None:
    """The same values in another dtype."""
    if x.dtype is dtype:
        copy(out, x)
    else:
        _CAST[x.dtype, dtype](out, x)


OPS: Final = [implementation("cast", cast, dtypes.PLAIN)]
