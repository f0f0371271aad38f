"""Numbers to the GGUF block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._kinds import KINDS
from propolis_rocm_kernels._layouts import strided_of


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("quantized_quantize")

_LANES: Final = MODULE.constant("LANES", 32)
"""Threads that make a block together."""

_QUANTIZE: Final = {d: MODULE.kernel(d.name, "PPqi1") for d in sorted(dtypes.BLOCKS, key=str)}


def quantize(out: Tensor, x: Tensor, dtype: DType, /) -> None:
    """The nearest blocks; floats go through f32."""
    if out.numel == 0:
        return
    size = x.dtype.block_bytes
    *lead, width = x.shape
    # Pieces of a row are whole blocks, whatever its layout.
    shape = (*lead, width // dtype.block_size, dtype.block_size)
    *strides, step = x.strides
    layout, numel, _, starts = strided_of(shape, (shape, (*strides, step * dtype.block_size, step)))
    blocks = numel // dtype.block_size
    for i, (start,) in enumerate(starts):
        to = out.ptr + i * blocks * dtype.block_bytes
        at = pointer(x) + start * size
        launched = min(-(-blocks * _LANES // BLOCK), MAX_BLOCKS)
        _QUANTIZE[dtype](out.device, launched, to, at, blocks, KINDS[x.dtype], layout)


OPS: Final = [implementation("quantize", quantize, dtypes.FLOATS, in_place=False)]
