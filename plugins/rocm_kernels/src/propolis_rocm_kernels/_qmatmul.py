"""
Products with weights in block formats, whichever module has them.

Of one row of f32 activations there is a faster one, which rounds them to 16 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._constants import PART
from propolis_rocm_kernels._constants import ROUNDED_BYTES
from propolis_rocm_kernels._constants import ROWS_OF_ONE
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._product import ROWS
from propolis_rocm_kernels._product import Kernels
from propolis_rocm_kernels._product import in_packs
from propolis_rocm_kernels._product import lanes_for
from propolis_rocm_kernels._product import launch_rows
from propolis_rocm_kernels._product import launch_tiles
from propolis_rocm_kernels._product import plan
from propolis_rocm_kernels._product import rows_for


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_kernels._kernels import Kernel
    from propolis_rocm_kernels._kernels import Module

# Others have kernels that ask for the format: ops_quantized_matmul_any.py.
ACTIVATIONS: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_ARGUMENTS: Final = "PPP" + 7 * "q"


_BLOCKS: Final = 8
"""The most blocks a compute unit that round the one row, each for itself."""


def qmatmul_of(module: Module, block_size: int) -> list[OpImpl]:
    """The op for weights in formats of that many elements a block: of one row, and of any."""
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

    of_one = {w: module.kernel(f"one_{w.name}_f32", "PPPqqqq") for w in formats}

    def qmatmul_one(out: Tensor, x: Tensor, w: Tensor, /) -> None:
        """The same of one row, rounded to 16 bits, 32 elements with a scale."""
        if out.numel:
            launch_one(of_one[w.dtype], out, x, w)

    return [
        implementation(
            "qmatmul",
            qmatmul_one,
            {"x": (dtypes.f32,), "w": formats},
            in_place=False,
            variant=f"one-row-{block_size}",
            priority=Priority.GENERIC + 10,
            supports=_one_row,
            exact=False,
            notes="one row of activations, rounded to 16 bits, 32 with a scale",
        ),
        implementation("qmatmul", qmatmul, {"x": ACTIVATIONS, "w": formats}, in_place=False),
    ]


def _one_row(x: Tensor, _: Tensor, /) -> str | None:
    depth = x.shape[-1]
    if not depth or x.numel != depth:
        return f"x is {x.shape}: it takes one row"
    if x.strides[-1] != 1 or x.layout.offset * x.dtype.block_bytes % PACK_BYTES:
        return f"elements of x lie where no {PACK_BYTES} bytes can be loaded at once"
    most = cast("RocmDevice", x.device).hardware.shared_bytes
    if depth // PART * ROUNDED_BYTES > most:
        return f"{depth} elements of x, rounded, are more than the {most} bytes of LDS"
    return None


def launch_one(kernel: Kernel, out: Tensor, x: Tensor, w: Tensor) -> None:
    """Queue a product of one row that is not empty."""
    n, depth = w.shape
    device = cast("RocmDevice", out.device)
    row = w.strides[0] // w.dtype.block_size * w.dtype.block_bytes
    # As of a row of eighths of parts, which is how lanes are counted.
    groups = -(-n // ROWS_OF_ONE)
    lanes = lanes_for(depth // PART * RUN, groups, device.warp_size, device.compute_units)
    blocks = min(-(-groups // (BLOCK // lanes)), _BLOCKS * device.compute_units)
    shared = depth // PART * ROUNDED_BYTES
    kernel(device, blocks, pointer(out), pointer(x), w.ptr, n, depth, row, lanes, shared=shared)


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
