"""Sums up to each element."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._scratch import BYTES
from propolis_rocm_kernels._scratch import PARTIALS
from propolis_rocm_kernels._scratch import scratch
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("reduce_cumsum")

_EACH: Final = MODULE.constant("EACH", 8)
"""Elements of a row that a thread adds up at a time."""

_TURN: Final = BLOCK * _EACH
_ROWS: Final = Structure(
    "Rows", dict.fromkeys(("rows", "width", "step", "out_step", "chunk", "splits"), "q")
)


def _kernels(way: str, letters: str) -> dict[DType, Any]:
    return {d: MODULE.kernel(f"{way}_{d.name}", (letters, _ROWS, "2")) for d in _ALONE}


# Sums that wrap around are the same with a sign and without.
_ALONE: Final = sorted(dtypes.PLAIN - {dtypes.i32}, key=str)
_SUMS: Final = _kernels("sums", "PP")
_ALONG: Final = _kernels("rows", "PPP")
_COLUMNS: Final = _kernels("columns", "PP")


def cumsum(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """The sums up to each element, itself included."""
    if out.numel == 0:
        return
    dim %= len(x.shape)
    device: Any = out.device
    own, given = out.strides, x.strides
    outer, width = x.shape[:dim] + x.shape[dim + 1 :], x.shape[dim]
    views = ((outer, strides[:dim] + strides[dim + 1 :]) for strides in (given, own))
    layout, rows, _, starts = strided_of(outer, *views)
    dtype, size = dtypes.u32 if x.dtype is dtypes.i32 else x.dtype, x.dtype.block_bytes
    steps = given[dim], own[dim]
    for start, to in starts:
        out_at, at = pointer(out) + to * size, pointer(x) + start * size
        if own[dim] > 1 and 16 * rows >= width:  # neighbours lie across
            shape = rows, width, *steps, width, 1
            _COLUMNS[dtype](device, blocks_for(rows, 1), out_at, at, *shape, layout)
            continue
        chunk, splits = _chunks(rows, width, device.compute_units)
        shape = rows, width, *steps, chunk, splits
        blocks = min(rows * splits, MAX_BLOCKS)
        sums = scratch(device) if splits > 1 else 0
        if sums:
            _SUMS[dtype](device, blocks, at, sums, *shape, layout)
        _ALONG[dtype](device, blocks, out_at, at, sums, *shape, layout)


def _chunks(rows: int, width: int, units: int) -> tuple[int, int]:
    """Elements of a chunk, and how many a row has: enough that all compute units have some."""
    most = min(PARTIALS // rows, -(-4 * units // rows), width // (4 * _TURN))
    splits = max(1, most if rows < 2 * units else 1)
    chunk = -(-width // (splits * _TURN)) * _TURN
    return chunk, -(-width // chunk)


OPS: Final = [
    implementation("cumsum", cumsum, dtypes.PLAIN, in_place=False, workspace=BYTES),
]
