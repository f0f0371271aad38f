"""
Exact dequantisation of the GGUF block formats.

The reference that every faster implementation is judged by: the values are, bit
for bit, those of ggml's ``dequantize_row_*``, because each is computed in f32 by
the same operations in the same order.  Scales that are infinite or NaN follow
IEEE; which NaN comes out (sign and payload) is not defined.

The layouts are those of the structs in ggml's ``ggml-common.h``: packed and
little-endian.  The function of each format states its own as lines of
``field: dtype[count]``, with bit 0 the least significant.  Here are q4_0 to q8_1;
``_blocks_k`` has the K formats, ``_blocks_coded`` those whose quants are codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.errors import DTypeError
from propolis.errors import ShapeError
from propolis_cpu_ref._blocks_coded import CODED_FORMATS
from propolis_cpu_ref._blocks_k import K_FORMATS
from propolis_cpu_ref._blocks_k import column
from propolis_cpu_ref._blocks_k import layout_of
from propolis_cpu_ref._blocks_k import parts


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis_cpu_ref._blocks_k import Format

CHUNK: Final = 131_072
"""
Elements dequantised at a time.  Their 512 KiB of f32 stay in a core's L2 cache
from one pass to the next, and the passes are long enough that threads seldom
wait for the GIL between them.
"""


def dequantize_blocks(raw: np.ndarray, dtype: DType, out: np.ndarray) -> None:
    """
    Write the f32 values of the blocks in ``raw`` to ``out``.

    One call runs on one thread, in numpy loops that release the GIL: callers
    split long tensors at block boundaries over threads.

    Args:
        raw: the blocks: uint8, one-dimensional and contiguous, at any alignment.
            It is only read.
        dtype: the block format.
        out: f32, one-dimensional and contiguous, ``dtype.block_size`` elements a
            block.  Every element is written.

    Raises:
        DTypeError: ``dtype`` is no block format, ``raw`` is not uint8 or ``out``
            is not f32.
        ShapeError: ``raw`` or ``out`` is not one-dimensional and contiguous,
            ``raw`` does not hold whole blocks, or ``out`` does not have one
            element for each of theirs.
    """
    n_blocks = _check(raw, dtype, out)
    layout, dequantize = _FORMATS[dtype]
    blocks = raw.view(layout)
    values = out.reshape(n_blocks, dtype.block_size)
    step = CHUNK // dtype.block_size
    # Infinite, NaN and huge scales are data here, not mistakes to warn of.
    with np.errstate(all="ignore"):
        for start in range(0, n_blocks, step):
            dequantize(blocks[start : start + step], values[start : start + step])


def _check(raw: np.ndarray, dtype: DType, out: np.ndarray) -> int:
    """The number of blocks, once it is sure that the arguments fit together."""
    if dtype not in _FORMATS:
        supported = ", ".join(d.name for d in _FORMATS)
        msg = f"dequantize_blocks: {dtype} is not a block format; supported: {supported}"
        raise DTypeError(msg)
    for name, array, wanted in (("raw", raw, np.uint8), ("out", out, np.float32)):
        if array.dtype != wanted:
            msg = f"dequantize_blocks: {name} is {array.dtype}; give {np.dtype(wanted)}"
            raise DTypeError(msg)
        if array.ndim != 1 or not array.flags.c_contiguous:
            msg = (
                f"dequantize_blocks: {name} has shape {array.shape} and strides {array.strides}; "
                "give a contiguous one-dimensional array"
            )
            raise ShapeError(msg)
    n_blocks, rest = divmod(raw.size, dtype.block_bytes)
    if rest:
        msg = (
            f"dequantize_blocks: raw has {raw.size} bytes; {dtype} takes a multiple of "
            f"{dtype.block_bytes}, one block"
        )
        raise ShapeError(msg)
    if out.size != n_blocks * dtype.block_size:
        msg = (
            f"dequantize_blocks: out has {out.size} elements; {n_blocks} blocks of {dtype} "
            f"need {n_blocks * dtype.block_size}"
        )
        raise ShapeError(msg)
    return n_blocks


def _q4_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * (q - 8)``: 32 elements in 18 bytes.

    ::

        d:  f16
        qs: u8[16]  element i in bits 0-3 of byte i, element i + 16 in bits 4-7
    """
    halves = out.reshape(-1, 2, 16)
    for i, q in enumerate(parts(blocks["qs"], 4)):
        halves[:, i] = np.subtract(q, 8, out=q).view(np.int8)
    out *= column(blocks["d"])


def _q4_1(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * q + m``: 32 elements in 20 bytes.

    ::

        d:  f16
        m:  f16
        qs: u8[16]  as in q4_0
    """
    halves = out.reshape(-1, 2, 16)
    for i, q in enumerate(parts(blocks["qs"], 4)):
        halves[:, i] = q
    out *= column(blocks["d"])
    out += column(blocks["m"])


def _five_bits(blocks: np.ndarray) -> np.ndarray:
    """The 32 quants, 0 to 31, of each q5_0 or q5_1 block."""
    q = np.unpackbits(blocks["qh"].reshape(-1), bitorder="little").reshape(-1, 2, 16)
    np.left_shift(q, 4, out=q)
    for i, low in enumerate(parts(blocks["qs"], 4)):
        q[:, i] |= low
    return q.reshape(-1, 32)


def _q5_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * (q - 16)``: 32 elements in 22 bytes.

    ::

        d:  f16
        qh: u8[4]   bit 4 of element i in bit i % 8 of byte i // 8
        qs: u8[16]  bits 0-3, as in q4_0
    """
    q = _five_bits(blocks)
    out[...] = np.subtract(q, 16, out=q).view(np.int8)
    out *= column(blocks["d"])


def _q5_1(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * q + m``: 32 elements in 24 bytes.

    ::

        d:  f16
        m:  f16
        qh: u8[4]   as in q5_0
        qs: u8[16]  as in q5_0
    """
    out[...] = _five_bits(blocks)
    out *= column(blocks["d"])
    out += column(blocks["m"])


def _q8_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * q``: 32 elements in 34 bytes.

    ::

        d:  f16
        qs: i8[32]
    """
    out[...] = blocks["qs"]
    out *= column(blocks["d"])


def _q8_1(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * q``: 32 elements in 36 bytes.

    ::

        d:  f16
        s:  f16     d times the sum of qs, for dot products; no part of the values
        qs: i8[32]
    """
    _q8_0(blocks, out)


_FORMATS: Final[dict[DType, Format]] = {
    dtypes.q4_0: (layout_of(d="f2", qs="16u1"), _q4_0),
    dtypes.q4_1: (layout_of(d="f2", m="f2", qs="16u1"), _q4_1),
    dtypes.q5_0: (layout_of(d="f2", qh="4u1", qs="16u1"), _q5_0),
    dtypes.q5_1: (layout_of(d="f2", m="f2", qh="4u1", qs="16u1"), _q5_1),
    dtypes.q8_0: (layout_of(d="f2", qs="32i1"), _q8_0),
    dtypes.q8_1: (layout_of(d="f2", s="f2", qs="32i1"), _q8_1),
    **K_FORMATS,
    **CODED_FORMATS,
}

LAYOUTS: Final[dict[DType, np.dtype]] = {dtype: layout for dtype, (layout, _) in _FORMATS.items()}
"""A block of each format as a struct."""
