"""
Values of tensors in the GGUF block formats, and products of many rows with them.

These are computed with the values in 16 bits, a tile of the weight at a time: where rows are many
that is little beside the products, and matrix instructions take them.
"""

from __future__ import annotations

import math
import typing
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Final

from propolis import Priority
from propolis import Tensor
from propolis import dtypes
from propolis.layout import Layout
from propolis_rocm_hip.space import Spare
from propolis_rocm_hip.space import Weights
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_hip.space import tile_rows
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._product import plan
from propolis_rocm_kernels.ops_cast import cast
from propolis_rocm_kernels.ops_matmul_matrix import MATRIX
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions
from propolis_rocm_kernels.ops_matmul_matrix import launch_matrix
from propolis_rocm_kernels.ops_matmul_matrix import parts_bytes


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import OpImpl
    from propolis import Storage
    from propolis.dtypes import DType
    from propolis_rocm_hip.device import RocmDevice

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


MANY_ROWS: Final = 9
"""From so many rows of activations on: kernels that read each weight once take up to eight."""


class Rounded(Spare):
    """Where activations in f32 lie, rounded."""

    holds = "rounded activations"


def qmatmul_rounded(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of both in 16 bits."""
    if out.numel == 0:
        return
    device = typing.cast("RocmDevice", out.device)
    n, depth = w.shape
    narrow = _narrow(x.dtype)
    size = narrow.block_bytes
    with (
        device.keep(Weights).lent(device, tile_rows(n, depth, size) * depth * size) as weights,
        rounded_rows(device, x, narrow) as rows,
    ):
        _products(out, rows, w, weights)


@contextmanager
def rounded_rows(device: RocmDevice, x: Tensor, narrow: DType) -> Iterator[Tensor]:
    """A tensor in a 16-bit dtype, for who queues what reads it; contiguous where it was rounded."""
    if x.dtype is narrow:
        yield x
        return
    with device.keep(Rounded).lent(device, x.numel * narrow.block_bytes) as memory:
        rounded = Tensor(memory, Layout.contiguous(x.shape), narrow, device)
        cast(rounded, x, narrow)
        yield rounded


def _products(out: Tensor, x: Tensor, w: Tensor, weights: Storage) -> None:
    """A tile of ``w`` after the other, in the dtype of ``x``."""
    *lead, n = out.shape
    depth, narrow = x.shape[-1], x.dtype
    tile = tile_rows(n, depth, narrow.block_bytes)
    given = plan(tuple(lead), x.strides[:-1], (0,) * len(lead))
    of_batches = given.batches.numel * given.m * n
    for first in range(0, n, tile):
        count = min(tile, n - first)
        part = Tensor(weights, Layout.contiguous((count, depth)), narrow, x.device)
        dequantize(part, w.narrow(0, first, count), narrow)
        strides = given.m, count, depth, given.row, 1, depth, 1, 0, 0
        for i, (start, _) in enumerate(given.batches.starts):
            to = pointer(out) + (i * of_batches + first) * out.dtype.block_bytes
            at = pointer(x) + start * narrow.block_bytes
            wide = out.dtype is not narrow
            if not launch_matrix(
                out.device, narrow, given, (to, at, part.ptr, 0), strides, wide=wide, out_row=n
            ):
                msg = f"qmatmul: {x} was taken, and has no rows of whole packs"
                raise AssertionError(msg)


def _narrow(dtype: DType) -> DType:
    """What activations, and weights with them, are multiplied in: f32 keeps its range."""
    return dtypes.bf16 if dtype is dtypes.f32 else dtype


def _memory(x: Tensor, w: Tensor) -> int:
    n, depth = w.shape
    if not x.numel or not n:
        return 0
    size = _narrow(x.dtype).block_bytes
    rounded = x.numel * size if x.dtype is dtypes.f32 else 0
    tile = tile_rows(n, depth, size)
    rows = x.numel // depth
    parts = max(parts_bytes(x.device, rows, count, depth) for count in (tile, n % tile or tile))
    return space_bytes(tile * depth * size) + space_bytes(rounded) + parts


def _takes(x: Tensor, w: Tensor, /) -> str | None:
    arch = x.device.properties.arch
    if not has_instructions(arch, _narrow(x.dtype)):
        return f"{arch} has no matrix instructions that take all numbers of {_narrow(x.dtype)}"
    rows = math.prod(x.shape[:-1])
    if not w.shape[-1]:
        return "sums of nothing are for others"
    if rows < MANY_ROWS:
        return f"{rows} rows are for kernels that dequantise on the way (fewer than {MANY_ROWS})"
    if x.dtype is not dtypes.f32:
        pack = PACK_BYTES // x.dtype.block_bytes
        if x.strides[-1] != 1 or any(s % pack for s in (x.layout.offset, *x.strides[:-1])):
            return f"rows of x begin where no {PACK_BYTES} bytes can be loaded at once"
    return None


def _rounded(variant: str, kinds: tuple[DType, ...], priority: int, notes: str) -> OpImpl:
    return implementation(
        "qmatmul",
        qmatmul_rounded,
        {"x": kinds, "w": dtypes.BLOCKS},
        in_place=False,
        workspace=_memory,
        variant=variant,
        priority=priority,
        supports=_takes,
        exact=False,
        notes=f"{notes}, on matrix instructions, sums in f32",
    )


OPS: Final = [
    implementation("dequantize", dequantize, dtypes.BLOCKS, in_place=False),
    _rounded("rounded", MATRIX, Priority.GENERIC + 10, "weights rounded to 16 bits"),
    # Before libraries, which multiply f32 as it is, and took 4 times as long on an H100.
    _rounded("rounded-f32", (dtypes.f32,), Priority.VENDOR + 10, "both rounded to bf16"),
]
