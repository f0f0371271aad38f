"""Products of one row of f32 activations, rounded to 16 bits, with weights in block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import CHUNKS
from propolis_rocm_kernels._constants import NEIGHBOURS
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._constants import PART
from propolis_rocm_kernels._constants import ROUNDED_BYTES
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._product import lanes_for


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("quantized_matmul_one")

THREADS: Final = MODULE.constant("THREADS", 512)
"""Of a block, where there are rows of weights for as many on every compute unit."""

NOTES: Final = "one row of activations, rounded to 16 bits, 32 with a scale"
"""Of all implementations that multiply so."""

_UNIT: Final = 1024
"""Threads of a compute unit: each of its blocks rounds the one row for itself."""

_PARTS: Final = {dtypes.q4_k: 2, dtypes.q5_k: 2, dtypes.q6_k: 2}
"""Parts that a lane takes at a time (``propolis_steps.h``), where it is not one."""

_KERNELS: Final = {w: MODULE.kernel(w.name, "PPPqqqqq") for w in sorted(dtypes.BLOCKS, key=str)}


class Plan(NamedTuple):
    """How a product with one row is launched."""

    blocks: int
    threads: int
    lanes: int
    row_bytes: int
    shared: int


def held(w: Tensor) -> tuple[int, int]:
    """Steps that lanes take a row of such weights in, and bytes of LDS of the row beside them."""
    depth = w.shape[1]
    if w.dtype.is_block:
        return depth // PART // _PARTS.get(w.dtype, 1), depth // PART * ROUNDED_BYTES
    steps = -(-depth * w.dtype.block_bytes // (PACK_BYTES * CHUNKS * NEIGHBOURS)) * NEIGHBOURS
    return steps, steps * CHUNKS * PACK_BYTES


def plan(device: RocmDevice, items: int, w: Tensor) -> Plan:
    """Of so many rows, or pairs of rows, of weights."""
    steps, nbytes = held(w)
    lanes = lanes_for(steps * RUN, items, device.warp_size, device.compute_units)
    threads = THREADS
    while threads > BLOCK and items * lanes < threads * device.compute_units:
        threads //= 2
    blocks = min(-(-items // (threads // lanes)), _UNIT // threads * device.compute_units)
    row_bytes = w.strides[0] // w.dtype.block_size * w.dtype.block_bytes
    return Plan(blocks, threads, lanes, row_bytes, nbytes)


def qmatmul_one(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of x rounded to 16 bits, 32 elements with a scale."""
    if not out.numel:
        return
    n, depth = w.shape
    device = cast("RocmDevice", out.device)
    made = plan(device, n, w)
    sizes = n, depth, made.row_bytes, made.lanes, made.threads
    values = pointer(out), pointer(x), w.ptr, *sizes
    _KERNELS[w.dtype](device, made.blocks, *values, threads=made.threads, shared=made.shared)


def refusal(name: str, row: Tensor, nbytes: int) -> str | None:
    """
    Why a tensor is no row that these kernels take; None where it is one.

    Args:
        name: what it is called.
        row: the tensor.
        nbytes: of LDS that the kernel takes for it, and for something else.
    """
    depth = row.shape[-1]
    if not depth or row.numel != depth:
        return f"{name} is {row.shape}: it takes one row, which is not empty"
    if row.strides[-1] != 1 or row.layout.offset * row.dtype.block_bytes % PACK_BYTES:
        return f"elements of {name} lie where no {PACK_BYTES} bytes can be loaded at once"
    most = cast("RocmDevice", row.device).hardware.shared_bytes
    if nbytes > most:
        return f"{depth} elements of {name} take {nbytes} of {most} bytes of LDS"
    return None


def _takes(x: Tensor, w: Tensor, /) -> str | None:
    return refusal("x", x, held(w)[1])


OPS: Final = [
    implementation(
        "qmatmul",
        qmatmul_one,
        {"x": (dtypes.f32,), "w": tuple(_KERNELS)},
        in_place=False,
        variant="one-row",
        priority=Priority.GENERIC + 10,
        supports=_takes,
        exact=False,
        notes=NOTES,
    ),
]
