"""Attention of many queries on matrix instructions, whose shares are rounded to 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import cast

from propolis import Priority
from propolis_rocm_kernels._attention import ARGUMENTS
from propolis_rocm_kernels._attention import Plan
from propolis_rocm_kernels._attention import few_queries
from propolis_rocm_kernels._attention import functions
from propolis_rocm_kernels._attention import rows_in_packs
from propolis_rocm_kernels._attention import supports
from propolis_rocm_kernels._attention import tiles_of
from propolis_rocm_kernels._attention import too_wide
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import FRAGMENT
from propolis_rocm_kernels._constants import GAP
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels.ops_matmul_matrix import MATRIX
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("attention_matrix")


WIDTHS: Final = (48, 64, 80, 128, 256)
"""Elements of a head that kernels are compiled for; narrower heads take the next."""

WHOLE: Final = 64
"""Elements of a head, up to which its last fragment need not be whole."""

VALUES: Final = MODULE.constant("VALUES", 128)
"""Elements of the values that a block has, at most."""

_SIZE: Final = 2  # bytes of an element
_FLASH: Final = {
    (d, n): MODULE.kernel(f"flash{n}_{d.name}", ARGUMENTS) for d in MATRIX for n in WIDTHS
}
_PAIRS: Final = {d: MODULE.kernel(f"pairs_{d.name}", ARGUMENTS) for d in MATRIX}
_HALVES: Final = {d: MODULE.kernel(f"halves_{d.name}", ARGUMENTS) for d in MATRIX}


def takes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    **others: Any,
) -> str | None:
    """None, or why a call is for other kernels."""
    arch = cast("RocmDevice", q.device).properties.arch
    if not has_instructions(arch, q.dtype):
        return f"{arch} has no matrix instructions that take all numbers of {q.dtype}"
    batch = q.shape[0] if q_start is None else q_start.shape[0] - 1
    if few_queries(q.shape[1], batch, ragged=q_start is not None):
        return f"{q.shape[1]} queries are for kernels of few"
    if bias is not None or alibi is not None:
        return "a bias, or ALiBi, is for other kernels"
    if max(q.shape[3], v.shape[3]) > WHOLE and q.shape[3] % FRAGMENT:
        return f"heads of {q.shape[3]} elements: up to {WHOLE}, or multiples of {FRAGMENT}"
    if reason := too_wide(q, v):
        return reason
    if not all(map(rows_in_packs, (q, k, v))):
        return "rows begin where no 16 bytes can be loaded at once"
    return supports(q, k, v, kv_len, **others)


def _choose(
    q: Tensor, k: Tensor, v: Tensor, batch: int, keys: int, *, ragged: bool, plain: bool
) -> Plan:
    del k, keys, plain
    device = cast("RocmDevice", q.device)
    width = next(n for n in WIDTHS if n >= max(q.shape[3], v.shape[3]))
    side = BLOCK // device.warp_size * FRAGMENT
    tiles = tiles_of(q.shape[1], batch, ragged=ragged, side=side) * q.shape[2]
    copies = device.properties.arch.startswith("sm_")
    kernel, threads = _FLASH[q.dtype, width], BLOCK
    if copies and width == WIDTHS[1]:
        threads = BLOCK // 2
        kernel = _PAIRS[q.dtype]
        if tiles < 2 * device.compute_units:
            kernel = _HALVES[q.dtype]
            tiles = tiles_of(q.shape[1], batch, ragged=ragged, side=side // 2) * q.shape[2]
    grid = (tiles, -(-v.shape[3] // VALUES), 1)
    return Plan(kernel, grid, threads, shared=bytes_of(width, copies=copies))


def bytes_of(width: int, *, copies: bool) -> int:
    """
    Of the keys and values in shared memory.

    Args:
        width: one of :data:`WIDTHS`.
        copies: these go on by themselves, so that a second tile is filled meanwhile.

    >>> bytes_of(64, copies=True), bytes_of(64, copies=False), bytes_of(256, copies=False)
    (36864, 9728, 27136)
    """
    values = min(width, VALUES)
    if copies:
        return 2 * 64 * (width + values + 2 * GAP) * _SIZE
    return (32 * (width + GAP) + values * (32 + GAP)) * _SIZE


OPS: Final = [
    implementation(
        name,
        fn,
        MATRIX,
        in_place=False,
        variant="matrix",
        priority=Priority.GENERIC + 10,
        supports=takes,
        exact=False,
        notes="on matrix instructions: shares are rounded to 16 bits before they weigh the values",
    )
    for name, fn in zip(("attention", "attention_lse"), functions(_choose), strict=True)
]
