"""Products with weights in block formats, whichever module has them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._product import ROWS
from propolis_rocm_kernels._product import Kernels
from propolis_rocm_kernels._product import in_packs
from propolis_rocm_kernels._product import launch_rows
from propolis_rocm_kernels._product import launch_tiles
from propolis_rocm_kernels._product import plan
from propolis_rocm_kernels._product import rows_for


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor
    from propolis_rocm_kernels._kernels import Module

# Others have kernels that ask for the format: ops_quantized_matmul_any.py.
ACTIVATIONS: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_ARGUMENTS: Final = "PPP" + 7 * "q"


def qmatmul_of(module: Module, block_size: int) -> list[OpImpl]:
    """The op for weights in formats of that many elements a block, of any number of rows."""
    formats = sorted((d for d in dtypes.BLOCKS if d.block_size == block_size), key=str)
    kernels = {
        (x, w): Kernels(
            {64: module.kernel(f"tile64_{w.name}_{x.name}", f"{_ARGUMENTS}2")},
            {m: module.kernel(f"rows{m}_{w.name}_{x.name}", f"{_ARGUMENTS}q2") for m in ROWS},
        )
        for x in ACTIVATIONS
        for w in formats
    }

    def qmatmul(out: Tensor, x: Tensor, w: Tensor, /) -> None:
        """``x @ dequantize(w).T``, with weights and activations as they are."""
        if out.numel:
            launch(kernels[x.dtype, w.dtype], out, x, w)

    return [
        implementation("qmatmul", qmatmul, {"x": ACTIVATIONS, "w": formats}, in_place=False),
    ]


def launch(kernels: Kernels, out: Tensor, x: Tensor, w: Tensor, *rest: int) -> None:
    """Queue a product that is not empty; ``rest`` are arguments that stand before ``first``."""
    *lead, n = out.shape
    depth = x.shape[-1]
    given = plan(tuple(lead), x.strides[:-1], (0,) * len(lead))
    step = x.strides[-1] if depth > 1 else 1
    row = w.strides[0] // w.dtype.block_size * w.dtype.block_bytes
    strides = given.m, n, depth, given.row, step, row, *rest
    most = rows_for(given.m, kernels.rows)
    packed = step == 1 and in_packs(pointer(x), x.dtype, given.step)
    size = x.dtype.block_bytes
    for i, (start, _) in enumerate(given.batches.starts):
        out_at = pointer(out) + i * given.batches.numel * given.m * n * size
        values = (out_at, pointer(x) + start * size, w.ptr, *strides)
        if most and packed:
            launch_rows(kernels.rows[most], out.device, most, given, n, depth, values)
        else:
            launch_tiles(kernels.tiles, out.device, given, n, values)
