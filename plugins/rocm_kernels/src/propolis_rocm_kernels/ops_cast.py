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


def _copied(source: DType, target: DType) -> bool:
    """Whether the bits are the same."""
    whole = source.is_integer and target.is_integer
    return source is target or (whole and source.block_bytes == target.block_bytes)


_BITS: Final = {d.block_bytes: d for d in (dtypes.u8, dtypes.i16, dtypes.u32, dtypes.i64)}
"""The integer dtype that stands for all of its size, where the sign makes no difference."""


def _kernel(source: DType, target: DType) -> tuple[DType, DType]:
    """What a kernel for these two is named after: integers wrap around, whatever their sign."""
    if source.is_integer and target.is_integer:
        if source.block_bytes > target.block_bytes:
            source = _BITS[source.block_bytes]
        target = _BITS[target.block_bytes]
    return source, target


_CAST: Final = {
    (a, b): Elementwise(MODULE, f"{a.name}_{b.name}", 1, max(a.block_bytes, b.block_bytes))
    for a, b in {_kernel(a, b) for a in dtypes.PLAIN for b in dtypes.PLAIN if not _copied(a, b)}
}


def cast(out: Tensor, x: Tensor, dtype: DType, /) -> None:
    """The same values in another dtype."""
    if _copied(x.dtype, dtype):
        copy(out, x)
    else:
        _CAST[_kernel(x.dtype, dtype)](out, x)


OPS: Final = [implementation("cast", cast, dtypes.PLAIN)]
