"""Products of the norm of a sum of two rows, rounded to 16 bits, with weights in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_quantized_matmul_one import NOTES
from propolis_rocm_kernels.ops_quantized_matmul_one import THREADS
from propolis_rocm_kernels.ops_quantized_matmul_one import held
from propolis_rocm_kernels.ops_quantized_matmul_one import plan
from propolis_rocm_kernels.ops_quantized_matmul_one import refusal
from propolis_rocm_kernels.ops_quantized_matmul_one import uneven


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("normed_quantized")

MODULE.constant("THREADS", THREADS)

_SUMS: Final = THREADS // 32 * dtypes.f32.block_bytes
"""Bytes of LDS by which the squares of a row are added up over warps, at most."""

_KERNELS: Final = {
    (w, gated): MODULE.kernel(w.name + "_gated" * gated, "PPPPPfPqqqqq")
    for w in sorted(dtypes.BLOCKS, key=str)
    for gated in (False, True)
}


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
    """The sum of two rows, and the product of its norm."""
    launch_normed(_KERNELS[w.dtype, gated], total, out, (x, residual, weight), eps, w)


def launch_normed(
    kernel: Kernel, total: Tensor, out: Tensor, rows: tuple[Tensor, ...], eps: float, w: Tensor
) -> None:
    """Queue a kernel that sums two rows, norms them and multiplies them."""
    n, depth = w.shape
    device = cast("RocmDevice", out.device)
    made = plan(device, out.shape[-1], w)
    values = map(pointer, (total, out, *rows))
    sizes = n, depth, made.row_bytes, made.lanes, made.threads
    threads, shared = made.threads, made.shared
    kernel(device, made.blocks, *values, eps, w.ptr, *sizes, threads=threads, shared=shared)


def refused(x: Tensor, residual: Tensor, weight: Tensor, w: Tensor, beside: int = 0) -> str | None:
    """Why these kernels do not multiply the norm of a sum; None where they do; see ``refusal``."""
    if not w.shape[0]:
        return "there are no rows of weights"
    rows = ("x", x), ("residual", residual), ("weight", weight)
    nbytes = held(w)[1] + _SUMS + beside
    return uneven(w) or next(filter(None, (refusal(name, row, nbytes) for name, row in rows)), None)


def _takes(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> str | None:
    del eps, gated
    return refused(x, residual, weight, w)


OPS: Final = [
    implementation(
        "add_rms_norm_qmatmul",
        add_rms_norm_qmatmul,
        {"x": (dtypes.f32,), "w": tuple(sorted(dtypes.BLOCKS, key=str))},
        in_place=False,
        variant="one-row",
        priority=Priority.GENERIC + 10,
        supports=_takes,
        exact=False,
        notes=NOTES,
    ),
]
