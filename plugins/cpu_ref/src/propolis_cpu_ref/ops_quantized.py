"""Blocks to numbers and back, and products with weights in blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import OpImpl
from propolis import Prepared
from propolis import Tensor
from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis.dtypes import FLOATS
from propolis_cpu_ref._blocks import dequantize_blocks
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._quantize import quantize_blocks
from propolis_cpu_ref._threads import over_rows
from propolis_cpu_ref.ops_cast import convert
from propolis_cpu_ref.ops_matmul import times_transposed


if TYPE_CHECKING:
    from propolis import DType

# Rows dequantised at a time where a weight was not prepared: bounds the memory.
CHUNK_ELEMENTS = 1 << 22


@ieee
def dequantize(out: Tensor, x: Tensor, /, dtype: DType = dtypes.f32) -> None:
    """The values, computed in f32 and rounded once to the output's dtype."""
    values = values_of(x).reshape(out.shape)
    out.array[...] = convert(values, dtypes.f32, dtype)


@ieee
def quantize(out: Tensor, x: Tensor, dtype: DType, /) -> None:
    """The nearest blocks; floats go through f32."""
    values = np.ascontiguousarray(x.array.astype(np.float32)).reshape(-1)
    quantize_blocks(values, dtype, out.array.reshape(-1))


@ieee
def qmatmul(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, in f32 (f64 for f64 activations)."""
    y = scratch(out)
    dense: Any = w.prepared.get(prepare)
    if dense is not None:
        times_transposed(out.device.threads, wide(x), dense, y)
    else:
        count = math.prod(x.shape[:-1])
        columns = y.reshape(count, w.shape[0])
        activations = wide(x).reshape(count, w.shape[1])
        step = max(1, CHUNK_ELEMENTS // max(w.shape[1], 1))
        for start in range(0, w.shape[0], step):
            part = w.narrow(0, start, min(step, w.shape[0] - start))
            rows = values_of(part).reshape(part.shape)
            columns[:, start : start + len(rows)] = activations @ rows.T
    store(out, y)


def prepare(w: Tensor) -> Prepared:
    """Dequantise a weight once: a step of decoding reads each weight once, and BLAS reads f32."""
    dense = values_of(w).reshape(w.shape)
    return Prepared(dense, dense.nbytes, "dequantised once to f32")


def values_of(x: Tensor) -> np.ndarray:
    """The f32 values of a block tensor, as a new 1-D array."""
    return numbers_of(x.array, x.dtype, x.device.threads).reshape(-1)


def numbers_of(blocks: np.ndarray, dtype: DType, threads: int) -> np.ndarray:
    """The f32 values of bytes of blocks, (..., bytes), as a new array (..., elements)."""
    raw = np.ascontiguousarray(blocks).reshape(-1)
    block, size = dtype.block_size, dtype.block_bytes
    count = raw.size // size
    values = np.empty(count * block, np.float32)

    def work(part: slice) -> None:
        dequantize_blocks(
            raw[part.start * size : part.stop * size],
            dtype,
            values[part.start * block : part.stop * block],
        )

    over_rows(threads, count, (1 << 20) // block, work)
    return values.reshape(*blocks.shape[:-1], blocks.shape[-1] // size * block)


OPS = [
    OpImpl(op="dequantize", fn=dequantize, dtypes=BLOCKS),
    OpImpl(op="quantize", fn=quantize, dtypes=FLOATS),
    OpImpl(
        op="qmatmul",
        fn=qmatmul,
        dtypes={"x": FLOATS, "w": BLOCKS},
        prepare=prepare,
        notes="exact: weights as f32, activations unrounded; prepared weights take 4 bytes each",
    ),
]
