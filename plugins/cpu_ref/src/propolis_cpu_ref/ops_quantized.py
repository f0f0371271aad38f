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
from propolis_cpu_ref.ops_norm import add_rms_norm
from propolis_cpu_ref.ops_rope import rope
from propolis_cpu_ref.ops_unary import silu_mul


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


def add_rms_norm_qmatmul(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> None:
    """One after the other, by the functions that do each."""
    normed = Tensor.from_numpy(np.empty(x.shape, np.float32), out.device)
    add_rms_norm(total, normed, x, residual, weight, eps)
    if not gated:
        qmatmul(out, normed, w)
        return
    shape, last = (*x.shape[:-1], w.shape[0]), len(x.shape) - 1
    both = Tensor.from_numpy(np.empty(shape, np.float32), out.device)
    qmatmul(both, normed, w)
    gate, up = (both.narrow(last, start, out.shape[-1]) for start in (0, out.shape[-1]))
    silu_mul(out, gate, up)


def add_rms_norm_qmatmul_rope(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> None:
    """The same, and its first heads rotated."""
    product = Tensor.from_numpy(np.empty(out.shape, np.float32), out.device)
    add_rms_norm_qmatmul(total, product, x, residual, weight, w, eps)
    out.array[...] = product.array
    turned, given = (
        each.narrow(2, 0, heads * head_dim).unflatten(2, head_dim) for each in (out, product)
    )
    rope(turned, given, positions, cos, sin, interleaved=interleaved)


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
    *(
        OpImpl(
            op=fn.__name__,
            fn=fn,
            dtypes={"x": {dtypes.f32}, "w": BLOCKS},
            prepare=prepare,
            notes="exact: weights as f32, activations unrounded",
        )
        for fn in (add_rms_norm_qmatmul, add_rms_norm_qmatmul_rope)
    ),
]
