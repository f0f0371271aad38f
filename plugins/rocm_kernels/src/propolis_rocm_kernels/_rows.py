"""Launches of kernels whose groups of threads each take a row."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import HELD_BY_BLOCK
from propolis_rocm_kernels._constants import HELD_BY_WARP
from propolis_rocm_kernels._constants import WIDE
from propolis_rocm_kernels._kernels import MAX_BLOCKS


if TYPE_CHECKING:
    from typing import Any

# So many rows keep the machine busy with a warp each; for fewer, latency counts.
_MANY: Final = 512

GROUPS: Final = ("warp", "block", "wide", "long")
"""The threads that take a row together, as the last word of a kernel's name has them."""


def plan(device: Any, rows: int, width: int, size: int) -> tuple[str, int, int]:
    """
    Who takes a row: the group of GROUPS, blocks and threads.

    Args:
        device: a ``RocmDevice``.
        rows: how many.
        width: elements of each.
        size: bytes of an element.
    """
    warp: int = device.warp_size
    if size == 8:  # half as many
        width *= 2
    if width <= HELD_BY_WARP * warp and (rows >= _MANY or width <= 4 * warp):
        return "warp", min(-(-rows // (BLOCK // warp)), MAX_BLOCKS), BLOCK
    blocks = min(rows, MAX_BLOCKS)
    if width <= HELD_BY_BLOCK * BLOCK:
        return "block", blocks, BLOCK
    return ("wide" if width <= HELD_BY_BLOCK * WIDE else "long"), blocks, WIDE
