"""Products of the norm of a sum with weights in blocks, whose first heads are rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_normed_quantized import refused
from propolis_rocm_kernels.ops_quantized_matmul_one import NOTES
from propolis_rocm_kernels.ops_quantized_matmul_one import THREADS
from propolis_rocm_kernels.ops_quantized_matmul_one import plan


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("normed_quantized_rope")

MODULE.constant("THREADS", THREADS)

EXCHANGED: Final = 2 * THREADS // RUN * dtypes.f32.block_bytes
"""Bytes of LDS by which sums meet those that they are rotated with."""

_KERNELS: Final = {
    w: MODULE.kernel(w.name, "PPPPPfPPPPqqqqqqqqiiii") for w in sorted(dtypes.BLOCKS, key=str)
}


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
    """The sum of two rows, and the product of its norm, pairs of whose rows are rotated."""
    rows, tables = (x, residual, weight), (positions, cos, sin)
    heads_of = head_dim, heads, interleaved
    launch_turned(_KERNELS[w.dtype], total, out, rows, eps, w, tables, heads_of)


def launch_turned(
    kernel: Kernel,
    total: Tensor,
    out: Tensor,
    rows: tuple[Tensor, ...],
    eps: float,
    w: Tensor,
    tables: tuple[Tensor, ...],
    heads_of: tuple[int, int, bool],
) -> None:
    """Queue a kernel that rotates the product too; ``tables`` are positions, cosines and sines."""
    n, depth = w.shape
    device = cast("RocmDevice", out.device)
    made = plan(device, n, w)
    _, cos, sin = tables
    height, pairs = cos.shape
    kernel(
        device,
        made.blocks,
        *map(pointer, (total, out, *rows)),
        eps,
        w.ptr,
        *map(pointer, tables),
        *(n, depth, made.row_bytes, made.lanes, made.threads),
        *(height, cos.strides[0], sin.strides[0], pairs, *heads_of),
        threads=made.threads,
        shared=made.shared,
    )


def _takes(
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
) -> str | None:
    del positions, eps, heads, interleaved
    return turns_not(cos, sin, head_dim) or refused(x, residual, weight, w, EXCHANGED)


def turns_not(cos: Tensor, sin: Tensor, head_dim: int) -> str | None:
    """Why these kernels do not rotate such heads by such tables; None where they do."""
    if head_dim % 2:
        return f"heads of {head_dim} elements are not made of pairs"
    if any(table.shape[1] > 1 and table.strides[1] != 1 for table in (cos, sin)):
        return "numbers of a row of the tables do not lie side by side"
    return None


OPS: Final = [
    implementation(
        "add_rms_norm_qmatmul_rope",
        add_rms_norm_qmatmul_rope,
        {"x": (dtypes.f32,), "w": tuple(_KERNELS)},
        in_place=False,
        variant="one-row",
        priority=Priority.GENERIC + 10,
        supports=_takes,
        exact=False,
        notes=NOTES,
    ),
]
