"""
Numbers that Python and the kernels' headers share: here they are said, once.

Each module is compiled with those that its files name, under the same names (see
:mod:`propolis_rocm_kernels._declared`).  What one ``.hip`` alone shares with its ``ops_*.py``
is said there, by ``MODULE.constant``.
"""

from __future__ import annotations

from typing import Final

from propolis import dtypes


BLOCK: Final = 256
"""Threads of a block, where a kernel does not say otherwise."""

WIDE: Final = 1024
"""Threads of the largest blocks."""

PACK_BYTES: Final = 16
"""Bytes that a thread loads or stores at once, at most: so many elements of one byte."""

HEAVY_PACK: Final = 8
"""Elements of a pack, at most, where each takes many instructions."""

UNROLLED: Final = 2
"""Packs that a thread has in flight, of short formulas."""

MAX_RANK: Final = 6
"""Dimensions of a ``StridedOf``."""

RUN: Final = 8
"""Elements of an operand of a product that a thread fetches at once."""

FRAGMENT: Final = 16
"""Rows of an operand that a matrix instruction takes."""

GAP: Final = 8
"""Elements between rows of an operand in shared memory: loads of eight rows meet no common bank."""

ROWS_OF_1: Final = 1
"""Rows of weights that a group of lanes has, of the mat-vec kernel for one row of ``a``."""
ROWS_OF_4: Final = 2
"""The same of the kernel for up to four."""
ROWS_OF_8: Final = 2
"""And for up to eight."""

PART: Final = 32
"""Activations that are rounded with one scale, where they are multiplied as integers."""
ROUNDED_BYTES: Final = 80
"""Bytes of shared memory that these take: two of each, and of each half its sum and the scale."""

CHUNKS: Final = 4
"""Of ``PACK_BYTES`` bytes of a row of plain weights, that a lane takes at a time."""
NEIGHBOURS: Final = 8
"""Lanes whose chunks lie side by side."""

HELD_BY_WARP: Final = 32
"""Values of a row that a thread keeps, if a warp takes the row; half as many of f64."""

HELD_BY_BLOCK: Final = 16
"""The same if a block does."""

COLUMN_LANES: Final = 32
"""Threads of a block with neighbouring outputs, where columns are reduced."""

BYTE_COLUMNS: Final = 4
"""Neighbouring outputs that a thread reduces, of elements of one byte; of others a whole pack."""

COUNTERS: Final = 4096
"""Counters at the start of a device's scratch memory."""

ACCUMULATOR: Final = 24
"""Bytes of the largest accumulator that lies behind them."""

KIND_U8: Final = 0
"""Dtypes as kernels are told them at the launch, by number: see ``_kinds.py``."""
KIND_U32: Final = 1
KIND_I16: Final = 2
KIND_I32: Final = 3
KIND_I64: Final = 4
KIND_F8E4M3: Final = 5
KIND_BF16: Final = 6
KIND_F16: Final = 7
KIND_F32: Final = 8
KIND_F64: Final = 9
KIND_I8: Final = 10
KIND_F8E5M2: Final = 11


def constants() -> dict[str, int]:
    """
    All of these, by name, and of each block format a block's elements and bytes, and its number.

    >>> constants()["BLOCK"], constants()["Q4_0_BYTES"]
    (256, 18)
    """
    found = {name: value for name, value in globals().items() if name.isupper()}
    for block in sorted(dtypes.BLOCKS, key=str):
        found[f"{block.name.upper()}_SIZE"] = block.block_size
        found[f"{block.name.upper()}_BYTES"] = block.block_bytes
        found[f"{block.name.upper()}_NUMBER"] = block.ggml_type or 0
    return found
