"""
Quantisation to the K formats of GGUF, and what all formats share.

Each group gets the scale (and minimum) that spans it, rounded to the format's integers;
its quants are then the nearest to the values under the *rounded* scale.  ggml searches
further for scales of lower error: its files are somewhat better, these are valid.  The
layouts are documented in ``_blocks_k``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dtypes import DType


def over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a / b``, and 0 where b is 0."""
    return np.where(b == 0, np.float32(0), a / np.where(b == 0, np.float32(1), b))


def as_half(x: np.ndarray) -> np.ndarray:
    """Rounded to what f16 holds, still f32."""
    return x.astype(np.float16).astype(np.float32)


def inverse(d: np.ndarray) -> np.ndarray:
    """``1 / d``, and 0 where d is 0."""
    return np.where(d == 0, np.float32(0), np.float32(1) / d)


def half_away(x: np.ndarray) -> np.ndarray:
    """The nearest whole number, ties away from zero, as C's roundf."""
    whole = np.floor(np.abs(x))
    return np.asarray(np.sign(x) * (whole + np.floor(2 * (np.abs(x) - whole))))


def signed_peak(x: np.ndarray) -> np.ndarray:
    """The element of each row that is largest in magnitude, with its sign, as a column."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)


def _affine(
    x: np.ndarray,
    groups: int,
    top: int,
    scale_top: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """
    ``(d * scale) * q - (dmin * min)`` for each group of a block.

    Args:
        x: (blocks, 256).
        groups: in a block.
        top: the largest quant.
        scale_top: the largest integer scale and min.

    Returns:
        d and dmin (blocks,), scales and mins (blocks, groups) u8, quants (blocks, 256) u8.
    """
    values = x.reshape(len(x), groups, -1)
    low = np.minimum(values.min(axis=2), 0)  # mins are subtracted and not negative
    span = (values.max(axis=2) - low) / np.float32(top)
    d = as_half(span.max(axis=1) / np.float32(scale_top))
    dmin = as_half((-low).max(axis=1) / np.float32(scale_top))
    scales = np.rint(over(span, d[:, None])).clip(0, scale_top)
    mins = np.rint(over(-low, dmin[:, None])).clip(0, scale_top)
    step = (d[:, None] * scales)[:, :, None]
    shift = (dmin[:, None] * mins)[:, :, None]
    q = np.rint(over(values + shift, step)).clip(0, top).astype(np.uint8)
    return d, dmin, scales.astype(np.uint8), mins.astype(np.uint8), q.reshape(x.shape)


def _symmetric(
    x: np.ndarray,
    levels: int,
    scale_top: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    ``(d * scale) * (q - levels)`` for each 16 elements of a block.

    Args:
        x: (blocks, 256).
        levels: half the number of quants.
        scale_top: integer scales are in [-scale_top - 1, scale_top].

    Returns:
        d (blocks,), scales (blocks, 16) i8, quants (blocks, 256) u8.
    """
    values = x.reshape(len(x), 16, 16)
    peak = np.take_along_axis(values, np.abs(values).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    # The peak maps to quant 0, the end of the range that reaches furthest.
    span = peak / np.float32(-levels)
    largest = np.take_along_axis(span, np.abs(span).argmax(axis=1)[:, None], axis=1)
    d = as_half(largest / np.float32(-scale_top - 1))
    scales = np.rint(over(span, d)).clip(-scale_top - 1, scale_top)
    step = (d * scales)[:, :, None]
    q = (np.rint(over(values, step)) + levels).clip(0, 2 * levels - 1).astype(np.uint8)
    return d[:, 0], scales.astype(np.int8), q.reshape(x.shape)


def spread(q: np.ndarray, rows: int, bits: int) -> np.ndarray:
    """
    Pack quants as ``parts`` of ``_blocks_k`` takes them apart.

    Args:
        q: (blocks, 256) of ``bits`` bits each.
        rows: packed bytes a run; quants of one byte are ``rows`` apart.
        bits: of each quant.
    """
    pieces = q.reshape(len(q), -1, 8 // bits, rows)
    packed = np.zeros((len(q), pieces.shape[1], rows), np.uint8)
    for part in range(8 // bits):
        packed |= pieces[:, :, part] << (part * bits)
    return packed.reshape(len(q), -1)


def _pack_six_bit_pairs(scales: np.ndarray, mins: np.ndarray) -> np.ndarray:
    """The 12 bytes of q4_k's and q5_k's scales and mins."""
    s, m = scales[:, 4:], mins[:, 4:]
    return np.concatenate(
        [scales[:, :4] | s >> 4 << 6, mins[:, :4] | m >> 4 << 6, s & 15 | (m & 15) << 4],
        axis=1,
    )


def _q2_k(x: np.ndarray, blocks: np.ndarray) -> None:
    d, dmin, scales, mins, q = _affine(x, 16, 3, 15)
    blocks["d"], blocks["dmin"] = d, dmin
    blocks["scales"] = scales | mins << 4
    blocks["qs"] = spread(q, 32, 2)


def _q3_k(x: np.ndarray, blocks: np.ndarray) -> None:
    d, scales, q = _symmetric(x, 4, 31)
    blocks["d"] = d
    blocks["qs"] = spread(q & 3, 32, 2)
    blocks["hmask"] = spread(q >> 2, 32, 1)
    bits = (scales + 32).astype(np.uint8)
    low = bits[:, :8] & 15 | (bits[:, 8:] & 15) << 4
    high = np.zeros((len(x), 4), np.uint8)
    for i in range(4):
        high |= bits[:, 4 * i : 4 * i + 4] >> 4 << (2 * i)
    blocks["scales"] = np.concatenate([low, high], axis=1)


def _q4_k(x: np.ndarray, blocks: np.ndarray) -> None:
    d, dmin, scales, mins, q = _affine(x, 8, 15, 63)
    blocks["d"], blocks["dmin"] = d, dmin
    blocks["scales"] = _pack_six_bit_pairs(scales, mins)
    blocks["qs"] = spread(q, 32, 4)


def _q5_k(x: np.ndarray, blocks: np.ndarray) -> None:
    d, dmin, scales, mins, q = _affine(x, 8, 31, 63)
    blocks["d"], blocks["dmin"] = d, dmin
    blocks["scales"] = _pack_six_bit_pairs(scales, mins)
    blocks["qs"] = spread(q & 15, 32, 4)
    blocks["qh"] = spread(q >> 4, 32, 1)


def _q6_k(x: np.ndarray, blocks: np.ndarray) -> None:
    d, scales, q = _symmetric(x, 32, 127)
    blocks["d"], blocks["scales"] = d, scales
    blocks["ql"] = spread(q & 15, 64, 4)
    blocks["qh"] = spread(q >> 4, 32, 2)


def _q8_k(x: np.ndarray, blocks: np.ndarray) -> None:
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = peak / np.float32(-127)
    q = np.rint(over(x, d)).clip(-128, 127).astype(np.int8)
    blocks["d"], blocks["qs"] = d[:, 0], q
    blocks["bsums"] = q.reshape(len(x), 16, 16).sum(axis=2, dtype=np.int16)


K_QUANTIZERS: Final[dict[DType, Callable[[np.ndarray, np.ndarray], None]]] = {
    dtypes.q2_k: _q2_k,
    dtypes.q3_k: _q3_k,
    dtypes.q4_k: _q4_k,
    dtypes.q5_k: _q5_k,
    dtypes.q6_k: _q6_k,
    dtypes.q8_k: _q8_k,
}
