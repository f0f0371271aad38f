"""Launches of kernels whose groups of threads each take a row."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_kernels._kernels import BLOCK
from propolis_rocm_kernels._kernels import MAX_BLOCKS


if TYPE_CHECKING:
    from typing import Any

WIDE: Final = 1024
"""Threads of the largest blocks, ``PROPOLIS_WIDE`` of the header."""

# Values of a row that a thread keeps, ``HELD`` of native/propolis_rows.h.
_HELD_BY_WARP: Final = 32
_HELD: Final = 16
# So many rows keep the machine busy with a warp each; for fewer, latency counts.
_MANY: Final = 512

WALKS: Final = ("warp", "block", "wide", "long")
"""How the threads of a kernel's name take a row."""


def plan(device: Any, rows: int, width: int, size: int) -> tuple[str, int, int]:
    """
    Who takes a row: the kernel's last name, blocks and threads.

    Args:
        device: a ``RocmDevice``.
        rows: how many.
        width: elements of each.
        size: bytes of an element.
    """
    warp: int = device.warp_size
    if size == 8:  # half as many
        width *= 2
    if width <= _HELD_BY_WARP * warp and (rows >= _MANY or width <= 4 * warp):
        groups = BLOCK // warp
        return "warp", min(-(-rows // groups), MAX_BLOCKS), BLOCK
    blocks = min(rows, MAX_BLOCKS)
    if width <= _HELD * BLOCK:
        return "block", blocks, BLOCK
    return ("wide" if width <= _HELD * WIDE else "long"), blocks, WIDE
