"""Products of two to four rows of activations with weights in block formats, as those of one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_quantized_matmul_one import held
from propolis_rocm_kernels.ops_quantized_matmul_one import plan
from propolis_rocm_kernels.ops_quantized_matmul_one import uneven


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("quantized_matmul_rows")

THREADS: Final = MODULE.constant("THREADS", 768)
"""Of a block, at most: with more, registers do not do for four rows."""

_ROWS: Final = (2, 4)
"""Rows of activations that there are kernels for."""

_KERNELS: Final = {
    (rows, w): MODULE.kernel(f"{rows}_{w.name}", "PPPqqqqqq")
    for rows in _ROWS
    for w in sorted(dtypes.BLOCKS, key=str)
}


def qmatmul_rows(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of x rounded to 16 bits, 32 elements with a scale."""
    if not out.numel:
        return
    n, depth = w.shape
    m = x.numel // depth
    device = cast("RocmDevice", out.device)
    rows = next(rows for rows in _ROWS if m <= rows)
    made = plan(device, n, w, rows, THREADS)
    sizes = m, n, depth, made.row_bytes, made.lanes, made.threads
    values = pointer(out), pointer(x), w.ptr, *sizes
    kernel = _KERNELS[rows, w.dtype]
    kernel(device, made.blocks, *values, threads=made.threads, shared=made.shared)


def _takes(x: Tensor, w: Tensor, /) -> str | None:
    depth = w.shape[1]
    rows = x.numel // depth if depth else 0
    if not 1 < rows <= _ROWS[-1]:
        return f"{rows} rows are for other kernels (it takes 2 to {_ROWS[-1]})"
    if not x.is_contiguous or x.layout.offset * x.dtype.block_bytes % PACK_BYTES:
        return f"rows of x do not follow each other where {PACK_BYTES} bytes can be loaded at once"
    most = cast("RocmDevice", x.device).hardware.shared_bytes
    nbytes = held(w)[1] * next(most for most in _ROWS if rows <= most)
    if nbytes > most:
        return f"{rows} rows of {depth} elements take {nbytes} of {most} bytes of LDS"
    return uneven(w)


OPS: Final = [
    implementation(
        "qmatmul",
        qmatmul_rows,
        {"x": (dtypes.f32,), "w": dtypes.BLOCKS},
        in_place=False,
        variant="few-rows-integers",
        priority=Priority.VENDOR + 25,
        supports=_takes,
        exact=False,
        notes="two to four rows of activations, rounded to 16 bits, 32 with a scale",
    ),
]
