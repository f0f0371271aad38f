"""Softmax and its logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._rows import GROUPS
from propolis_rocm_kernels._rows import plan


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor

MODULE: Final = Module("softmax")

# Columns of a block.
_COLUMNS: Final = MODULE.constant("COLUMNS", 32)


def _implement(name: str) -> OpImpl:
    rows_of = {
        (dtype, group): MODULE.kernel(f"{name}_{dtype.name}_{group}", "PPqqq1")
        for dtype in dtypes.FLOATS
        for group in GROUPS
    }
    columns_of = {
        dtype: MODULE.kernel(f"{name}_{dtype.name}_columns", "PPqqqq2") for dtype in dtypes.FLOATS
    }

    def run(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
        layout, dtype = x.layout, x.dtype
        if layout.numel == 0:
            return
        shape, strides = layout.shape, layout.strides
        dim %= len(shape)
        width, stride, size = shape[dim], strides[dim], dtype.block_bytes
        outer = shape[:dim] + shape[dim + 1 :]
        theirs = strides[:dim] + strides[dim + 1 :]
        to, start = pointer(out), pointer(x)
        own = out.layout.strides
        if own[dim] > 1 and layout.numel > width:
            own_outer = own[:dim] + own[dim + 1 :]
            packed, columns, _, starts = strided_of(outer, (outer, theirs), (outer, own_outer))
            blocks = min(-(-columns // _COLUMNS), MAX_BLOCKS)
            kernel = columns_of[dtype]
            for at, there in starts:
                pointers = to + there * size, start + at * size
                kernel(out.device, blocks, *pointers, columns, width, stride, own[dim], packed)
            return
        packed, rows, _, starts = strided_of(outer, (outer, theirs))
        group, blocks, threads = plan(out.device, rows, width, size)
        kernel = rows_of[dtype, group]
        for (at,) in starts:
            from_ = start + at * size
            kernel(out.device, blocks, to, from_, rows, width, stride, packed, threads=threads)
            to += rows * width * size

    return implementation(name, run, dtypes.FLOATS, in_place=False)


OPS: Final = [_implement("softmax"), _implement("log_softmax")]
