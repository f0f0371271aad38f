"""
Values of tensors in the GGUF block formats, and products of many rows with them.

These are computed with the values in 16 bits, a part of the weight at a time: where rows are many
that is little beside the products, and matrix instructions take them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import Priority
from propolis import Tensor
from propolis import dtypes
from propolis.errors import DeviceError
from propolis.errors import OutOfMemoryError
from propolis.layout import Layout
from propolis_rocm_hip.space import Space
from propolis_rocm_hip.space import space_bytes
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


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Storage
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


MANY_ROWS: Final = 9
"""From so many rows of activations on: kernels that read each weight once take up to eight."""

PART_BYTES: Final = 64 << 20
"""The most values of a weight that there are at a time: a large cache of a GPU still has them."""

_WIDTH: Final = 128
"""Rows of a part are a multiple of it: the width of tiles."""


class Dequantised(Space):
    """Where a part of a weight lies."""


class Rounded(Space):
    """And activations in f32, rounded."""


def qmatmul_rounded(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of both in 16 bits."""
    if out.numel == 0:
        return
    device: Any = out.device
    wide = x.dtype is dtypes.f32
    narrow = _narrow(x.dtype)
    if wide:
        memory = _room(device, Rounded, x.numel * narrow.block_bytes)
        rounded = Tensor(memory, Layout.contiguous(x.shape), narrow, device)
        cast(rounded, x, narrow)
        x = rounded
    *lead, n = out.shape
    depth = x.shape[-1]
    rows = _part(n, depth)
    memory = _room(device, Dequantised, rows * depth * narrow.block_bytes)
    given = plan(tuple(lead), x.strides[:-1], (0,) * len(lead))
    of_batches = given.batches.numel * given.m * n
    for first in range(0, n, rows):
        count = min(rows, n - first)
        part = Tensor(memory, Layout.contiguous((count, depth)), narrow, device)
        dequantize(part, w.narrow(0, first, count), narrow)
        strides = given.m, count, depth, given.row, 1, depth, 1, 0, 0
        for i, (start, _) in enumerate(given.batches.starts):
            to = pointer(out) + (i * of_batches + first) * out.dtype.block_bytes
            at = pointer(x) + start * narrow.block_bytes
            places = to, at, part.ptr, 0
            if not launch_matrix(device, narrow, given, places, strides, wide=wide, out_row=n):
                msg = f"qmatmul: {x} was taken, and has no rows of whole packs"
                raise AssertionError(msg)


def _room(device: Any, space: type[Space], wanted: int) -> Storage:
    try:
        return device.keep(space).storage(device, wanted)  # type: ignore[no-any-return]
    except OutOfMemoryError as exc:
        # No lack of the caller's: others need none.
        msg = f"{device.id}: no memory for {space.__name__.lower()} numbers of a product: {exc}"
        raise DeviceError(msg) from exc


def _narrow(dtype: DType) -> DType:
    """What activations, and weights with them, are multiplied in: f32 keeps its range."""
    return dtypes.bf16 if dtype is dtypes.f32 else dtype


def _part(n: int, depth: int) -> int:
    """
    Rows of a weight that are taken at a time.

    >>> _part(4096, 4096), _part(128256, 4096)
    (4096, 8064)
    """
    most = max(PART_BYTES // (depth * 2), 1)
    each = math.ceil(n / math.ceil(n / most))
    return min(-(-each // _WIDTH) * _WIDTH, n)


def _memory(x: Tensor, w: Tensor) -> int:
    n, depth = w.shape
    rounded = 2 * x.numel if x.dtype is dtypes.f32 else 0
    return space_bytes(2 * _part(n, depth) * depth) + space_bytes(rounded) if x.numel and n else 0


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
