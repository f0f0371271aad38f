"""Products of one row with weights of the same dtype."""

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
from propolis_rocm_kernels.ops_quantized_matmul_one import THREADS
from propolis_rocm_kernels.ops_quantized_matmul_one import held
from propolis_rocm_kernels.ops_quantized_matmul_one import plan
from propolis_rocm_kernels.ops_quantized_matmul_one import refusal


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("matmul_one")

MODULE.constant("THREADS", THREADS)

PLAIN: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
"""What weights and the row are in."""

NOTES: Final = "one row of activations, sums in f32"
"""Of all implementations that multiply so."""

_KERNELS: Final = {d: MODULE.kernel(d.name, "PPPqPqqqqq") for d in PLAIN}


def linear_one(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """``x @ w.T + bias`` of one row."""
    if not out.numel:
        return
    n, depth = w.shape
    device = cast("RocmDevice", out.device)
    made = plan(device, n, w)
    shift = (0, 0) if bias is None else (pointer(bias), bias.strides[0])
    sizes = n, depth, made.row_bytes, made.lanes, made.threads
    values = pointer(out), pointer(x), *shift, pointer(w), *sizes
    _KERNELS[w.dtype](device, made.blocks, *values, threads=made.threads, shared=made.shared)


def unpacked(w: Tensor) -> str | None:
    """Why a weight's rows are not loaded in whole packs; None where they are."""
    size = w.dtype.block_bytes
    places = (w.layout.offset, w.shape[1], w.strides[0] if w.shape[0] > 1 else 0)
    if w.strides[1] != 1 or any(place * size % PACK_BYTES for place in places):
        return f"rows of w lie where no whole packs of {PACK_BYTES} bytes can be loaded"
    return None


def _takes(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    del bias
    return unpacked(w) or refusal("x", x, held(w)[1])


OPS: Final = [
    implementation(
        "linear",
        linear_one,
        PLAIN,
        in_place=False,
        variant="one-row",
        priority=Priority.GENERIC + 10,
        supports=_takes,
        notes=NOTES,
    ),
]
