"""Rows of a table in a GGUF block format."""

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
from propolis_rocm_kernels.ops_indexing import ID_KINDS


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("indexing_blocks")

_EMBEDDING: Final = {
    (block, plain): MODULE.kernel(f"embedding_{block.name}_{plain.name}", "PPPqqqqi1")
    for block in sorted(dtypes.BLOCKS, key=str)
    for plain in sorted(dtypes.FLOATS, key=str)
}


def embedding(out: Tensor, ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> None:
    """Rows of a table in a block format; of what is masked, or no row of it, zeros."""
    if out.numel == 0:
        return
    dtype = dtype or dtypes.f32
    rows, width = table.shape
    row = table.strides[0] // table.dtype.block_size * table.dtype.block_bytes
    packed, n, _, starts = strided_of(ids.shape, (ids.shape, ids.strides))
    kernel = _EMBEDDING[table.dtype, dtype]
    for i, (start,) in enumerate(starts):
        to = pointer(out) + i * n * width * dtype.block_bytes
        at = pointer(ids) + start * ids.dtype.block_bytes
        blocks = blocks_for(n * width // RUN, 1)
        sizes = n, rows, row, width, ID_KINDS[ids.dtype]
        kernel(out.device, blocks, to, at, table.ptr, *sizes, packed)


OPS: Final = [
    implementation(
        "embedding",
        embedding,
        {"ids": tuple(ID_KINDS), "table": dtypes.BLOCKS},
        in_place=False,
    )
]
