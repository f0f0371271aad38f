"""Products of few rows of f32 activations with weights in block formats, on matrix instructions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels._constants import FRAGMENT
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions
from propolis_rocm_kernels.ops_quantized import rounded_rows


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("quantized_matmul_few")

LEAST_ROWS: Final = 2
"""Rows of activations from which on they are for it: one is multiplied in integers."""

_TALL: Final = {8: 1, 16: 1, 32: 2, 64: 2}
"""Of a kernel for so many rows of activations: fragments of rows of weights that a block has."""

MOST_ROWS: Final = max(_TALL)
"""Rows of activations, at most."""

_KERNELS: Final = {
    (rows, w): MODULE.kernel(f"rows{rows}_{w.name}", "PPPqqqqq")
    for rows in _TALL
    for w in sorted(dtypes.BLOCKS, key=str)
}


def qmatmul_few(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of both in bf16."""
    if out.numel == 0:
        return
    n, depth = w.shape
    m = out.numel // n
    most = next(rows for rows in _TALL if m <= rows)
    row = w.strides[0] // w.dtype.block_size * w.dtype.block_bytes
    blocks = -(-n // (_TALL[most] * FRAGMENT))
    device = cast("RocmDevice", out.device)
    with rounded_rows(device, x, dtypes.bf16) as rows:
        sizes = m, n, depth, depth, row
        _KERNELS[most, w.dtype](device, blocks, pointer(out), pointer(rows), w.ptr, *sizes)


def _memory(x: Tensor, _: Tensor) -> int:
    return space_bytes(x.numel * dtypes.bf16.block_bytes)


def declined(x: Tensor, w: Tensor, least: int, most: int) -> str | None:
    """Why kernels that unpack weights on their way do not take a product, of rows from and to."""
    arch = x.device.properties.arch
    if not has_instructions(arch, dtypes.bf16):
        return f"{arch} has no matrix instructions that take all numbers of {dtypes.bf16}"
    if not w.shape[-1]:
        return "sums of nothing are for others"
    rows = math.prod(x.shape[:-1])
    if not least <= rows <= most:
        return f"{rows} rows are for other kernels (it takes {least} to {most})"
    return None


def _takes(x: Tensor, w: Tensor, /) -> str | None:
    return declined(x, w, LEAST_ROWS, MOST_ROWS)


OPS: Final = [
    implementation(
        "qmatmul",
        qmatmul_few,
        {"x": (dtypes.f32,), "w": dtypes.BLOCKS},
        in_place=False,
        workspace=_memory,
        variant="few-rows",
        priority=Priority.VENDOR + 20,
        supports=_takes,
        exact=False,
        notes="both rounded to bf16 on the way, on matrix instructions, sums in f32",
    )
]
