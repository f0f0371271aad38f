"""
Exact dequantisation of the K formats of GGUF, of 256 elements a block.

Also what these share with the others; ``_blocks`` says what is common to all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis.dtypes import DType

Format = tuple[np.dtype, Callable[[np.ndarray, np.ndarray], None]]
"""
A block as a struct, and the function that dequantises some: from an array of
structs to an f32 array of one row a block.
"""


def layout_of(**fields: str) -> np.dtype:
    """A block as a packed struct of little-endian fields."""
    return np.dtype([(name, "<" + kind) for name, kind in fields.items()])


def column(field: np.ndarray) -> np.ndarray:
    """A field of one number a block, as a column of f32 to broadcast."""
    return field.astype(np.float32)[..., np.newaxis]


def parts(field: np.ndarray, bits: int) -> Iterator[np.ndarray]:
    """
    The ``bits``-wide parts of a field of bytes, lowest first.

    Yields:
        ``8 // bits`` arrays of the shape of ``field``: part 0 of every byte, then
        part 1 of every byte, and so on.  Each overwrites the one before.
    """
    # Eight bytes at a time; a shift moves bits into the byte below, the mask drops them.
    # The copy is aligned, whatever raw is.
    words = field.copy().reshape(-1).view(np.uint64)
    mask = np.uint64(0x0101010101010101 * ((1 << bits) - 1))
    part = np.empty_like(words)
    for shift in range(0, 8, bits):
        np.right_shift(words, np.uint64(shift), out=part)
        np.bitwise_and(part, mask, out=part)
        yield part.view(np.uint8).reshape(field.shape)


def _q2_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``(d * scale) * q - (dmin * min)``: 256 elements in 84 bytes.

    ::

        scales: u8[16]  scale of elements 16 j to 16 j + 15 in bits 0-3 of byte j,
                        their min in bits 4-7
        qs:     u8[64]  element 128 h + 32 k + l in bits 2 k and 2 k + 1 of byte 32 h + l
        d:      f16
        dmin:   f16
    """
    quarters = out.reshape(-1, 2, 4, 32)
    for k, q in enumerate(parts(blocks["qs"].reshape(-1, 2, 32), 2)):
        quarters[:, :, k] = q
    scales = blocks["scales"]
    _scale_and_shift(blocks, scales & 15, scales >> 4, out.reshape(-1, 16, 16))


def _q3_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``(d * (scale - 32)) * (q - 4)``: 256 elements in 110 bytes.

    ::

        hmask:  u8[32]  bit 2 of element 32 k + l in bit k of byte l
        qs:     u8[64]  bits 0-1, as in q2_k
        scales: u8[12]  16 scales of 6 bits, one for 16 elements: scale j has its bits
                        0-3 in byte j % 8 at bit 4 (j // 8), and its bits 4-5 in byte
                        8 + j % 4 at bit 2 (j // 4)
        d:      f16
    """
    q = np.empty((len(blocks), 2, 4, 32), np.uint8)
    for k, low in enumerate(parts(blocks["qs"].reshape(-1, 2, 32), 2)):
        q[:, :, k] = low
    eighths = q.reshape(-1, 8, 32)
    for k, high in enumerate(parts(blocks["hmask"], 1)):
        eighths[:, k] |= np.left_shift(high, 2, out=high)
    out[...] = np.subtract(q, 4, out=q).view(np.int8).reshape(out.shape)

    scales = np.empty((len(blocks), 4, 4), np.uint8)
    eights = scales.reshape(-1, 2, 8)
    for i, low in enumerate(parts(blocks["scales"][:, :8], 4)):
        eights[:, i] = low
    for i in range(4):
        scales[:, i] |= (blocks["scales"][:, 8:] >> (2 * i) & 3) << 4
    scales -= 32
    sixteenths = out.reshape(-1, 16, 16)
    sixteenths *= _products(blocks["d"], scales.view(np.int8).reshape(-1, 16))


def _q4_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``(d * scale) * q - (dmin * min)``: 256 elements in 144 bytes.

    ::

        d:      f16
        dmin:   f16
        scales: u8[12]   8 scales and 8 mins of 6 bits, one each for 32 elements:
                         j < 4:  scale j in bits 0-5 of byte j,
                                 min j in bits 0-5 of byte 4 + j
                         j >= 4: bits 0-3 of scale j in bits 0-3 of byte 4 + j,
                                 bits 0-3 of min j in bits 4-7 of byte 4 + j,
                                 bits 4-5 of scale j in bits 6-7 of byte j - 4,
                                 bits 4-5 of min j in bits 6-7 of byte j
        qs:     u8[128]  element 64 h + l in bits 0-3 of byte 32 h + l,
                         element 64 h + 32 + l in bits 4-7
    """
    halves = out.reshape(-1, 4, 2, 32)
    for i, q in enumerate(parts(blocks["qs"].reshape(-1, 4, 32), 4)):
        halves[:, :, i] = q
    _scale_and_shift(blocks, *_six_bit_pairs(blocks["scales"]), out.reshape(-1, 8, 32))


def _q5_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``(d * scale) * q - (dmin * min)``: 256 elements in 176 bytes.

    ::

        d:      f16
        dmin:   f16
        scales: u8[12]   as in q4_k
        qh:     u8[32]   bit 4 of element 32 k + l in bit k of byte l
        qs:     u8[128]  bits 0-3, as in q4_k
    """
    q = np.empty((len(blocks), 4, 2, 32), np.uint8)
    for i, low in enumerate(parts(blocks["qs"].reshape(-1, 4, 32), 4)):
        q[:, :, i] = low
    eighths = q.reshape(-1, 8, 32)
    for k, high in enumerate(parts(blocks["qh"], 1)):
        eighths[:, k] |= np.left_shift(high, 4, out=high)
    out[...] = q.reshape(out.shape)
    _scale_and_shift(blocks, *_six_bit_pairs(blocks["scales"]), out.reshape(-1, 8, 32))


def _q6_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``(d * scale) * (q - 32)``: 256 elements in 210 bytes.

    ::

        ql:     u8[128]  bits 0-3 of element 128 h + l in bits 0-3 of byte 64 h + l,
                         of element 128 h + 64 + l in bits 4-7
        qh:     u8[64]   bits 4-5, as the bits 0-1 in q2_k
        scales: i8[16]   one for 16 elements
        d:      f16
    """
    q = np.empty((len(blocks), 2, 2, 64), np.uint8)
    for i, low in enumerate(parts(blocks["ql"].reshape(-1, 2, 64), 4)):
        q[:, :, i] = low
    quarters = q.reshape(-1, 2, 4, 32)
    for k, high in enumerate(parts(blocks["qh"].reshape(-1, 2, 32), 2)):
        quarters[:, :, k] |= np.left_shift(high, 4, out=high)
    out[...] = np.subtract(q, 32, out=q).view(np.int8).reshape(out.shape)
    sixteenths = out.reshape(-1, 16, 16)
    sixteenths *= _products(blocks["d"], blocks["scales"])


def _q8_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * q``: 256 elements in 292 bytes.

    ::

        d:     f32
        qs:    i8[256]
        bsums: i16[16]  the sum of each 16 of qs, for dot products; no part of the values
    """
    out[...] = blocks["qs"]
    out *= column(blocks["d"])


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 8 scales and the 8 mins of each q4_k or q5_k block; see there."""
    scale, low_min, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([scale & 63, (rest & 15) | (scale >> 6 << 4)], axis=1)
    mins = np.concatenate([low_min & 63, (rest >> 4) | (low_min >> 6 << 4)], axis=1)
    return scales, mins


def _products(d: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The f32 scale of each group, to broadcast: the block's d times the group's integer."""
    return (column(d) * scales.astype(np.float32))[..., np.newaxis]


def _scale_and_shift(
    blocks: np.ndarray, scales: np.ndarray, mins: np.ndarray, groups: np.ndarray
) -> None:
    """Turn quants into values in place; there is a scale and a min for each group."""
    groups *= _products(blocks["d"], scales)
    groups -= _products(blocks["dmin"], mins)


K_FORMATS: Final[dict[DType, Format]] = {
    dtypes.q2_k: (layout_of(scales="16u1", qs="64u1", d="f2", dmin="f2"), _q2_k),
    dtypes.q3_k: (layout_of(hmask="32u1", qs="64u1", scales="12u1", d="f2"), _q3_k),
    dtypes.q4_k: (layout_of(d="f2", dmin="f2", scales="12u1", qs="128u1"), _q4_k),
    dtypes.q5_k: (layout_of(d="f2", dmin="f2", scales="12u1", qh="32u1", qs="128u1"), _q5_k),
    dtypes.q6_k: (layout_of(ql="128u1", qh="64u1", scales="16i1", d="f2"), _q6_k),
    dtypes.q8_k: (layout_of(d="f4", qs="256i1", bsums="16i2"), _q8_k),
}
