"""Products of the norm of a sum with weights in blocks, whose first heads are rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple
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

TURNED: Final = "PPPPPfPPPPPPqqqqqqqqqqqiiiiii"
"""What such kernels take; see :func:`launch_turned`."""

_BITS: Final = {dtypes.f32: 32, dtypes.f16: 16, dtypes.bf16: -16}
_KERNELS: Final = {w: MODULE.kernel(w.name, TURNED) for w in sorted(dtypes.BLOCKS, key=str)}


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


def add_rms_norm_qmatmul_rope_kv_append(
    total: Tensor,
    out: Tensor,
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> None:
    """The same, whose keys and values go into a cache."""
    rows, tables = (x, residual, weight), (positions, cos, sin)
    launch_kept(
        _KERNELS[w.dtype], (total, out), cache, rows, eps, w, slots, tables, heads, interleaved
    )


def launch_kept(
    kernel: Kernel,
    outs: tuple[Tensor, Tensor],
    cache: Tensor,
    rows: tuple[Tensor, ...],
    eps: float,
    w: Tensor,
    slots: Tensor,
    tables: tuple[Tensor, ...],
    heads: int,
    interleaved: bool,
) -> None:
    """Queue a kernel that rotates the product, and keeps the heads behind the first ones."""
    _, capacity, both, head_dim = cache.shape
    _, slot_stride, head_stride, _ = cache.strides
    kept = Kept(
        (pointer(cache), pointer(slots)),
        (slot_stride, head_stride, capacity),
        (heads, _BITS[cache.dtype]),
    )
    heads_of = head_dim, heads + both // 2, interleaved
    launch_turned(kernel, *outs, rows, eps, w, tables, heads_of, kept)


class Kept(NamedTuple):
    """
    Where keys and values go.

    Attributes:
        pointers: of a cache and the token's slot in it; 0 where all is in one product.
        steps: between slots and between heads, in elements, and how many slots there are.
        kind: how many heads are queries, and what an element of the cache is.
    """

    pointers: tuple[int, int] = (0, 0)
    steps: tuple[int, int, int] = (0, 0, 0)
    kind: tuple[int, int] = (0, 0)


_NOWHERE: Final = Kept()


def launch_turned(
    kernel: Kernel,
    total: Tensor,
    out: Tensor,
    rows: tuple[Tensor, ...],
    eps: float,
    w: Tensor,
    tables: tuple[Tensor, ...],
    heads_of: tuple[int, int, bool],
    kept: Kept = _NOWHERE,
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
        *kept.pointers,
        *(n, depth, made.row_bytes, made.lanes, made.threads),
        *(height, cos.strides[0], sin.strides[0], *kept.steps, pairs, *heads_of, *kept.kind),
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


def _keeps(
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> str | None:
    del slots, positions, eps, heads, interleaved
    return keeps_not(cache, cos, sin) or refused(x, residual, weight, w, EXCHANGED)


def keeps_not(cache: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    """Why these kernels do not keep heads in such a cache; None where they do."""
    if cache.shape[3] > 1 and cache.strides[3] != 1:
        return "elements of a head do not lie side by side in the cache"
    return turns_not(cos, sin, cache.shape[3])


def turns_not(cos: Tensor, sin: Tensor, head_dim: int) -> str | None:
    """Why these kernels do not rotate such heads by such tables; None where they do."""
    if head_dim % 2:
        return f"heads of {head_dim} elements are not made of pairs"
    if any(table.shape[1] > 1 and table.strides[1] != 1 for table in (cos, sin)):
        return "numbers of a row of the tables do not lie side by side"
    return None


OPS: Final = [
    implementation(
        name,
        fn,
        {"x": (dtypes.f32,), "w": tuple(_KERNELS)},
        in_place=False,
        variant="one-row",
        priority=Priority.GENERIC + 10,
        supports=supports,
        exact=False,
        notes=NOTES,
    )
    for name, fn, supports in (
        ("add_rms_norm_qmatmul_rope", add_rms_norm_qmatmul_rope, _takes),
        ("add_rms_norm_qmatmul_rope_kv_append", add_rms_norm_qmatmul_rope_kv_append, _keeps),
    )
]
