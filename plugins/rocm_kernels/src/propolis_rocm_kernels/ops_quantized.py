"""Values of tensors in the GGUF block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("quantized")

_DEQUANTIZE: Final = {
    (block, plain): MODULE.kernel(f"dequantize_{block.name}_{plain.name}", "PPq1")
    for block in sorted(dtypes.BLOCKS, key=str)
    for plain in sorted(dtypes.FLOATS, key=str)
}


def dequantize(out: Tensor, x: Tensor, /, dtype: DType = dtypes.f32) -> None:
    """The values of a tensor in a block format."""
    if out.numel == 0:
        return
    block = x.dtype.block_size
    shape = (*x.shape[:-1], x.shape[-1] // block)
    strides = (*(s // block for s in x.strides[:-1]), 1)
    packed, blocks, _, starts = strided_of(shape, (shape, strides))
    runs = blocks * block // RUN
    kernel = _DEQUANTIZE[x.dtype, dtype]
    for i, (start,) in enumerate(starts):
        to = pointer(out) + i * blocks * block * dtype.block_bytes
        at = x.ptr + start * x.dtype.block_bytes
        kernel(out.device, blocks_for(runs, 1), to, at, runs, packed)


OPS: Final = [implementation("dequantize", dequantize, dtypes.BLOCKS, in_place=False)]
