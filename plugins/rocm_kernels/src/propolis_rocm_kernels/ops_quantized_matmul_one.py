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

THREADS: Final = MODULE.constant("THREADS", 1024)
"""Of a compute unit, and of a block, at most."""

NOTES: Final = "one row of activations, rounded to 16 bits, 32 with a scale"
"""Of all implementations that multiply so."""

_SHALLOW: Final = 4096 // PART * ROUNDED_BYTES
"""Bytes of LDS of a row below which two blocks a compute unit are faster than one: each rounds the
row for itself, while the other multiplies."""

_FORMATS = {
    1: (dtypes.q8_0, dtypes.q8_1, dtypes.q8_k),
    4: (dtypes.q2_k, dtypes.tq2_0),
    8: (dtypes.tq1_0,),
}
_PARTS: Final = {w: parts for parts, formats in _FORMATS.items() for w in formats}
"""Parts that a lane takes at a time (``propolis_steps.h``), where it is not two."""

_KERNELS: Final = {w: MODULE.kernel(w.name, "PPPqqqqq") for w in sorted(dtypes.BLOCKS, key=str)}


class Plan(NamedTuple):
    """How a product with one row is launched."""

    blocks: int
    threads: int
    lanes: int
    row_bytes: int
    shared: int


def uneven(w: Tensor) -> str | None:
    """Why rows of such weights are not taken: where lanes take two blocks of them at a time."""
    size, parts = w.dtype.block_size, _PARTS.get(w.dtype, 2)
    if size != PART or parts == 1:
        return None
    if w.shape[1] % (parts * PART):
        return f"rows of {w.shape[1]} {w.dtype} elements are taken {parts * PART} at a time"
    pair = w.dtype.nbytes(parts * size)
    align = pair & -pair
    if any(w.dtype.nbytes(n) % align for n in (w.layout.offset, w.strides[0])):
        return f"rows of {w.dtype} elements begin where no {align} bytes can be loaded at once"
    return None


def held(w: Tensor) -> tuple[int, int]:
    """Steps that lanes take a row of such weights in, and bytes of LDS of the row beside them."""
    depth = w.shape[1]
    if w.dtype.is_block:
        return depth // PART // _PARTS.get(w.dtype, 2), depth // PART * ROUNDED_BYTES
    steps = -(-depth * w.dtype.block_bytes // (PACK_BYTES * CHUNKS * NEIGHBOURS)) * NEIGHBOURS
    return steps, steps * CHUNKS * PACK_BYTES


def plan(device: RocmDevice, items: int, w: Tensor, rows: int = 1, most: int | None = None) -> Plan:
    """
    How rows of weights, or pairs of them, are shared: every compute unit has as many, or nearly.

    Args:
        device: where.
        items: how many there are.
        w: the weights.
        rows: of activations.
        most: threads of a block, where they are not ``THREADS``.
    """
    most = most or THREADS
    steps, nbytes = held(w)
    nbytes *= rows
    units, warp = device.compute_units, device.warp_size
    lanes = lanes_for(steps * RUN, items, warp, units)
    needed = -(-items * lanes // units)
    rounds = -(-needed // most)
    blocks = 2 if nbytes < _SHALLOW else 1
    pairs = -(-needed // (rounds * blocks * 2 * warp))  # of warps, which may share a pair of rows
    threads = max(BLOCK, pairs * 2 * warp)
    row_bytes = w.strides[0] // w.dtype.block_size * w.dtype.block_bytes
    return Plan(
        min(-(-items // (threads // lanes)), blocks * units), threads, lanes, row_bytes, nbytes
    )


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
    return uneven(w) or refusal("x", x, held(w)[1])


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
