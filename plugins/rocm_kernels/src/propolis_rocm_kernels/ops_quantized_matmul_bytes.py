"""Products of few rows of f32 activations with weights in block formats, as bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels import ops_quantized_matmul_few as few
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import FRAGMENT
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_matmul_matrix import LDS
from propolis_rocm_kernels.ops_matmul_matrix import room
from propolis_rocm_kernels.ops_quantized import Rounded


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("quantized_matmul_bytes")

_CHUNK: Final = MODULE.constant("CHUNK", 256)
"""Of a row, of weights and of activations, that are brought at a time, and rounded together."""

_ROWS: Final = (4, 8, 16)
"""Rows of activations that there are kernels for."""

_WIDE: Final = 8
"""Blocks that a compute unit may have at once where what comes next is in registers."""

_ROUND: Final = MODULE.kernel("round", "PPqqqq")
_KERNELS: Final = {
    (rows, w): MODULE.kernel(f"rows{rows}_{w.name}", "PPPqqqqq")
    for rows in _ROWS
    for w in sorted(dtypes.BLOCKS, key=str)
}


def qmatmul_bytes(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of x rounded to 16 bits, 256 elements with a scale."""
    if not out.numel:
        return
    n, depth = w.shape
    m = x.numel // depth
    device = cast("RocmDevice", out.device)
    rows, chunks = _rows(m), -(-depth // _CHUNK)
    pieces, shared = _staged(w, device)
    with device.keep(Rounded).lent(device, _bytes(m, depth)) as rounded:
        blocks = -(-chunks * rows * (_CHUNK // RUN) // BLOCK)
        _ROUND(device, blocks, rounded.ptr, pointer(x), m, depth, chunks, rows)
        sizes = m, n, depth, _row_bytes(w), pieces
        # Blocks go on from tile to tile, as many as are at work at once, or more.
        most = (_WIDE if room(device) <= LDS else 2) * device.compute_units
        kernel, blocks = _KERNELS[rows, w.dtype], min(-(-n // FRAGMENT), most)
        kernel(device, blocks, pointer(out), rounded.ptr, w.ptr, *sizes, shared=shared)


def _rows(m: int) -> int:
    return next(rows for rows in _ROWS if m <= rows)


def _row_bytes(w: Tensor) -> int:
    return w.strides[0] // w.dtype.block_size * w.dtype.block_bytes


def _bytes(m: int, depth: int) -> int:
    """Of rounded rows."""
    chunks = -(-depth // _CHUNK)
    each = 2 * _CHUNK + 4 * _CHUNK // 16 + 4  # two planes of bytes, sums, and a scale
    return _rows(m) * chunks * each


def _staged(w: Tensor, device: RocmDevice) -> tuple[int, int]:
    """Pieces that a chunk of a row may touch, and LDS of a block.

    Where copies go on it has two chunks, and sums of tiles behind them; else one, or one's sums.
    """
    nbytes = w.dtype.nbytes(_CHUNK)
    start = math.gcd(w.ptr, _row_bytes(w), nbytes, PACK_BYTES)  # what divides where chunks begin
    pieces = -(-(nbytes + PACK_BYTES - start) // PACK_BYTES)
    warps = BLOCK // device.warp_size
    chunk = warps * FRAGMENT * (pieces | 1) * PACK_BYTES
    column = warps * (FRAGMENT + 4) * 4
    return pieces, max(chunk, 16 * column) if room(device) <= LDS else 2 * chunk + 32 * column


def _memory(x: Tensor, w: Tensor) -> int:
    return space_bytes(_bytes(x.numel // w.shape[1], w.shape[1])) if x.numel else 0


def _takes(x: Tensor, w: Tensor, /) -> str | None:
    if (reason := few.declined(x, w, few.LEAST_ROWS, _ROWS[-1])) is not None:
        return reason
    if not x.is_contiguous or x.layout.offset * x.dtype.block_bytes % PACK_BYTES:
        return f"rows of x do not follow each other where {PACK_BYTES} bytes can be loaded at once"
    nbytes = w.dtype.nbytes(_CHUNK)
    if nbytes % 4 == 0 and any(w.dtype.nbytes(n) % 4 for n in (w.layout.offset, w.strides[0])):
        return f"rows of {w.dtype} elements begin where no 4 bytes can be loaded at once"
    if _row_bytes(w) * FRAGMENT >= 1 << 31:
        return f"rows of w are {_row_bytes(w)} bytes apart"
    if w.shape[0] >= 1 << 30:
        return f"w has {w.shape[0]} rows"
    return None


OPS: Final = [
    implementation(
        "qmatmul",
        qmatmul_bytes,
        {"x": (dtypes.f32,), "w": dtypes.BLOCKS},
        in_place=False,
        workspace=_memory,
        variant="few-rows-bytes",
        priority=Priority.VENDOR + 40,
        supports=_takes,
        exact=False,
        notes="two to 16 rows, rounded to 16 bits, 256 with a scale, bytes on matrix instructions",
    )
]
