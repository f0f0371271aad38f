"""Values of tensors in the GGUF block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.ops.indexing import INDEX_DTYPES
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._elementwise import record
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import walk
from propolis_rocm_kernels._product import RUN


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("quantized")

_PAIRS: Final = [
    (block, plain)
    for block in sorted(dtypes.BLOCKS, key=str)
    for plain in sorted(dtypes.FLOATS, key=str)
]
_DEQUANTIZE: Final = {
    (w, d): MODULE.kernel(f"dequantize_{w.name}_{d.name}", "PPq1") for w, d in _PAIRS
}
_EMBEDDING: Final = {
    (w, d): MODULE.kernel(f"embedding_{w.name}_{d.name}", "PPPqqqqq1") for w, d in _PAIRS
}
_ID_KINDS: Final = {dtypes.u8: 0, dtypes.i16: 1, dtypes.i32: 2, dtypes.u32: 3, dtypes.i64: 4}


def dequantize(out: Tensor, x: Tensor, /, dtype: DType = dtypes.f32) -> None:
    """The values of a tensor in a block format."""
    if out.numel == 0:
        return
    block = x.dtype.block_size
    shape = (*x.shape[:-1], x.shape[-1] // block)
    strides = (*(s // block for s in x.strides[:-1]), 1)
    packed, blocks, _, starts = walk(shape, (shape, strides))
    runs = blocks * block // RUN
    kernel = _DEQUANTIZE[x.dtype, dtype]
    for i, (start,) in enumerate(starts):
        to = pointer(out) + i * blocks * block * dtype.block_bytes
        at = x.ptr + start * x.dtype.block_bytes
        kernel(out.device, blocks_for(runs, 1), to, at, runs, packed)


def embedding(out: Tensor, ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> None:
    """Rows of a table in a block format; of what is masked, or no row of it, zeros."""
    if out.numel == 0:
        return
    dtype = dtype or dtypes.f32
    rows, width = table.shape
    row = table.strides[0] // table.dtype.block_size * table.dtype.block_bytes
    packed, n, _, starts = walk(ids.shape, (ids.shape, ids.strides))
    kernel = _EMBEDDING[table.dtype, dtype]
    for i, (start,) in enumerate(starts):
        to = pointer(out) + i * n * width * dtype.block_bytes
        at = pointer(ids) + start * ids.dtype.block_bytes
        blocks = blocks_for(n * width // RUN, 1)
        sizes = n, rows, row, width, _ID_KINDS[ids.dtype]
        kernel(out.device, blocks, to, at, table.ptr, *sizes, packed)


OPS: Final = [
    record("dequantize", dequantize, dtypes.BLOCKS, in_place=False),
    record("embedding", embedding, {"ids": INDEX_DTYPES, "table": dtypes.BLOCKS}, in_place=False),
]
