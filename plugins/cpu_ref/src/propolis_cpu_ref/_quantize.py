"""
Quantisation to the GGUF block formats q4_0 to q8_1.

The bytes are those that the ``gguf`` library writes, which are those of ggml's
``quantize_row_*_ref`` compiled without fused multiply-adds.  The layouts are documented
in ``_blocks``; the K formats are in ``_quantize_k``, those whose quants are codes in
``_quantize_coded``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis_cpu_ref._blocks import LAYOUTS
from propolis_cpu_ref._quantize_coded import CODED_QUANTIZERS
from propolis_cpu_ref._quantize_k import K_QUANTIZERS
from propolis_cpu_ref._quantize_k import half_away
from propolis_cpu_ref._quantize_k import inverse
from propolis_cpu_ref._quantize_k import signed_peak


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dtypes import DType

CHUNK: Final = 1 << 18
"""Elements quantised at a time: bounds the temporaries."""


def quantize_blocks(values: np.ndarray, dtype: DType, out: np.ndarray) -> None:
    """
    Write ``values`` to ``out`` in a block format.

    Args:
        values: f32, contiguous and one-dimensional, a whole number of blocks.
        dtype: the block format.
        out: uint8, contiguous and one-dimensional, ``dtype.nbytes(len(values))`` bytes.
    """
    quantize = _QUANTIZERS[dtype]
    rows = values.reshape(-1, dtype.block_size)
    blocks = out.view(LAYOUTS[dtype])
    step = max(1, CHUNK // dtype.block_size)
    # Infinities and NaN have no quants; what they become is not defined, but no error.
    with np.errstate(all="ignore"):
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            quantize(rows[some], blocks[some])


def _nibbles(q: np.ndarray) -> np.ndarray:
    """32 quants of 4 bits as 16 bytes: element i low, element i + 16 high."""
    return q[:, :16] & 15 | q[:, 16:] << 4


def _fifth_bits(q: np.ndarray) -> np.ndarray:
    """Bit 4 of 32 quants as 4 bytes."""
    return np.packbits(q >> 4, axis=1, bitorder="little")


def _symmetric(x: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and quants of ``d * (q - levels)``: the peak maps to quant 0."""
    d = signed_peak(x) / np.float32(-levels)
    # In f32, as gguf: ggml's own rounding depends on whether a compiler fused these two.
    q = np.trunc(x * inverse(d) + np.float32(levels + 0.5)).clip(0, 2 * levels - 1).astype(np.uint8)
    return d, q


def _affine(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale, minimum and quants of ``d * q + m``."""
    low = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - low) / np.float32(top)
    q = np.trunc((x - low) * inverse(d) + np.float32(0.5)).clip(0, top).astype(np.uint8)
    return d, low, q


def _q4_0(x: np.ndarray, blocks: np.ndarray) -> None:
    d, q = _symmetric(x, 8)
    blocks["d"], blocks["qs"] = d[:, 0], _nibbles(q)


def _q4_1(x: np.ndarray, blocks: np.ndarray) -> None:
    d, low, q = _affine(x, 15)
    blocks["d"], blocks["m"], blocks["qs"] = d[:, 0], low[:, 0], _nibbles(q)


def _q5_0(x: np.ndarray, blocks: np.ndarray) -> None:
    d, q = _symmetric(x, 16)
    blocks["d"], blocks["qh"], blocks["qs"] = d[:, 0], _fifth_bits(q), _nibbles(q)


def _q5_1(x: np.ndarray, blocks: np.ndarray) -> None:
    d, low, q = _affine(x, 31)
    blocks["d"], blocks["m"] = d[:, 0], low[:, 0]
    blocks["qh"], blocks["qs"] = _fifth_bits(q), _nibbles(q)


def _q8_0(x: np.ndarray, blocks: np.ndarray) -> None:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    blocks["d"] = d[:, 0]
    blocks["qs"] = half_away(x * inverse(d)).astype(np.int8)


def _q8_1(x: np.ndarray, blocks: np.ndarray) -> None:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    q = half_away(x * inverse(d)).astype(np.int8)
    blocks["d"], blocks["qs"] = d[:, 0], q
    blocks["s"] = q.sum(axis=1, dtype=np.int32).astype(np.float32) * d[:, 0]


_QUANTIZERS: Final[dict[DType, Callable[[np.ndarray, np.ndarray], None]]] = {
    dtypes.q4_0: _q4_0,
    dtypes.q4_1: _q4_1,
    dtypes.q5_0: _q5_0,
    dtypes.q5_1: _q5_1,
    dtypes.q8_0: _q8_0,
    dtypes.q8_1: _q8_1,
    **K_QUANTIZERS,
    **CODED_QUANTIZERS,
}
