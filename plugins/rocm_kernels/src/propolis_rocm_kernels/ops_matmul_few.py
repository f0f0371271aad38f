"""Products of few rows with weights of the same 16 or 8 bits, on matrix instructions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._constants import FRAGMENT
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_matmul_matrix import MATRIX
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions
from propolis_rocm_kernels.ops_matmul_one import unpacked


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("matmul_few")

_SPAN: Final = 32
"""What divides the depth: as much as instructions take at once, at most."""

_ROWS: Final = (8, 16, 32)
"""Rows of activations that a block of a kernel takes, at most."""

_BYTES: Final = (dtypes.f8e4m3, dtypes.f8e5m2)
"""What is taken as f16, which has all of their numbers; of any rows, for tiles multiply none."""

_WIDELY: Final = 16
"""Rows of activations from beyond which on it is for products of few rows of weights alone."""

_BLOCKS: Final = 4
"""Blocks for each compute unit that those have at most: of more, tiles are as fast."""

_KERNELS: Final = {
    (rows, d): MODULE.kernel(f"rows{rows}_{d.name}", "PPPP" + 6 * "q")
    for rows in _ROWS
    for d in (*MATRIX, *_BYTES)
}


def linear_few(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """``x @ w.T + bias`` of few rows; the bias joins before the sum is rounded."""
    if not out.numel:
        return
    n, depth = w.shape
    m = out.numel // n
    most = next((rows for rows in _ROWS if m <= rows), _ROWS[-1])
    device = cast("RocmDevice", out.device)
    shift = (0, 0) if bias is None else (pointer(bias), bias.strides[0])
    sizes = m, n, depth, depth, w.strides[0]
    kernel = _KERNELS[most, x.dtype]
    kernel(device, _blocks(m, n), pointer(out), pointer(x), pointer(w), *shift, *sizes)


def _blocks(m: int, n: int) -> int:
    return -(-n // FRAGMENT) * -(-m // _ROWS[-1])


def _takes(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    del bias
    device, dtype = cast("RocmDevice", x.device), x.dtype
    in_bytes = dtype in _BYTES
    if not has_instructions(device.properties.arch, dtypes.f16 if in_bytes else dtype):
        return (
            f"{device.properties.arch} has no matrix instructions that take all numbers of {dtype}"
        )
    rows, (n, depth) = math.prod(x.shape[:-1]), w.shape
    if not rows or (rows > _ROWS[-1] and not in_bytes):
        return f"{rows} rows are for other kernels (it takes 1 to {_ROWS[-1]}, of f8 any)"
    if _blocks(rows, n) > MAX_BLOCKS:
        return f"{rows} rows by {n} of weights are more than a launch takes"
    if rows > _WIDELY and not in_bytes and n > _BLOCKS * FRAGMENT * device.compute_units:
        return f"{rows} rows by {n} of weights are for tiles"
    if not depth or depth % _SPAN:
        return f"sums have {depth} terms: it takes multiples of {_SPAN}"
    if not x.is_contiguous or x.layout.offset * dtype.block_bytes % PACK_BYTES:
        return f"rows of x do not follow each other where {PACK_BYTES} bytes can be loaded at once"
    return unpacked(w)


OPS: Final = [
    implementation(
        "linear",
        linear_few,
        (*MATRIX, *_BYTES),
        in_place=False,
        variant="few-rows",
        priority=Priority.GENERIC + 12,  # before one-row's, which takes 1.0 to 1.3 times as long
        supports=_takes,
        notes=f"up to {_ROWS[-1]} rows, of f8 any, on matrix instructions, sums in f32",
    ),
]
