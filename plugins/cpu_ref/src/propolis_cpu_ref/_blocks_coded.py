"""
Exact dequantisation of the GGUF block formats whose quants are codes.

Codes of 4 bits stand for the numbers of a table, those of the ternary formats for -1, 0
and 1.  ``_blocks`` says what is common to all formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis_cpu_ref._blocks_k import column
from propolis_cpu_ref._blocks_k import layout_of
from propolis_cpu_ref._blocks_k import parts


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis_cpu_ref._blocks_k import Format

IQ4_VALUES: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""What the codes of iq4_nl and iq4_xs stand for: closer together where weights are more."""

MXFP4_VALUES: Final = np.array(
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32
)
"""
Twice the numbers of a float of 4 bits: a sign, two bits of exponent, one of mantissa.

The zero of negative sign is 0, as ggml has it.
"""

MXFP4_SCALES: Final = np.ldexp(np.float32(1), np.arange(256) - 128)
"""
Half of what the 8 bits of an exponent stand for, which makes up for the doubled values.

255 is a power of two as all others are to ggml, where the standard has NaN.
"""


def _iq4_nl(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * IQ4_VALUES[q]``: 32 elements in 18 bytes.

    ::

        d:  f16
        qs: u8[16]  as in q4_0
    """
    halves = out.reshape(-1, 2, 16)
    for i, q in enumerate(parts(blocks["qs"], 4)):
        halves[:, i] = IQ4_VALUES.take(q)
    out *= column(blocks["d"])


def _iq4_xs(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``(d * (scale - 32)) * IQ4_VALUES[q]``: 256 elements in 136 bytes.

    ::

        d:        f16
        scales_h: u16      8 scales of 6 bits, one for 32 elements: bits 4-5 of scale j in
                           bits 2 j and 2 j + 1
        scales_l: u8[4]    bits 0-3 of scale j in byte j // 2, at bit 4 (j % 2)
        qs:       u8[128]  element 32 j + l in bits 0-3 of byte 16 j + l,
                           element 32 j + 16 + l in bits 4-7
    """
    halves = out.reshape(-1, 8, 2, 16)
    for i, q in enumerate(parts(blocks["qs"].reshape(-1, 8, 16), 4)):
        halves[:, :, i] = IQ4_VALUES.take(q)
    low = blocks["scales_l"].repeat(2, axis=1) >> np.array([0, 4] * 4, np.uint8) & 15
    high = blocks["scales_h"][:, np.newaxis] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high << 4).astype(np.float32) - np.float32(32)
    groups = out.reshape(-1, 8, 32)
    groups *= (column(blocks["d"]) * scales)[..., np.newaxis]


def _tq1_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * (q - 1)``: 256 elements in 54 bytes.

    A byte has five digits of 3 as the fraction that they are after the point, in 256ths
    and rounded up: digit k is the whole part of three times what is left after
    multiplying by 3 k times.

    ::

        qs: u8[48]  digit k of byte l is element 32 k + l, of byte 32 + l element
                    160 + 16 k + l
        qh: u8[4]   the first four digits alone: digit k of byte l is element 240 + 4 k + l
        d:  f16
    """
    first = 0
    for field, digits in (
        (blocks["qs"][:, :32], 5),
        (blocks["qs"][:, 32:], 5),
        (blocks["qh"], 4),
    ):
        rest = field.copy()
        for _ in range(digits):
            end = first + rest.shape[1]
            out[:, first:end] = rest.astype(np.uint16) * 3 >> 8
            np.multiply(rest, 3, out=rest)  # modulo 256
            first = end
    out -= 1
    out *= column(blocks["d"])


def _tq2_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``d * (q - 1)``: 256 elements in 66 bytes.

    ::

        qs: u8[64]  as in q2_k
        d:  f16
    """
    quarters = out.reshape(-1, 2, 4, 32)
    for k, q in enumerate(parts(blocks["qs"].reshape(-1, 2, 32), 2)):
        quarters[:, :, k] = np.subtract(q, 1, out=q).view(np.int8)
    out *= column(blocks["d"])


def _mxfp4(blocks: np.ndarray, out: np.ndarray) -> None:
    """
    ``MXFP4_SCALES[e] * MXFP4_VALUES[q]``: 32 elements in 17 bytes.

    ::

        e:  u8
        qs: u8[16]  as in q4_0
    """
    halves = out.reshape(-1, 2, 16)
    for i, q in enumerate(parts(blocks["qs"], 4)):
        halves[:, i] = MXFP4_VALUES.take(q)
    out *= MXFP4_SCALES.take(blocks["e"])[:, np.newaxis]


CODED_FORMATS: Final[dict[DType, Format]] = {
    dtypes.iq4_nl: (layout_of(d="f2", qs="16u1"), _iq4_nl),
    dtypes.iq4_xs: (layout_of(d="f2", scales_h="u2", scales_l="4u1", qs="128u1"), _iq4_xs),
    dtypes.tq1_0: (layout_of(qs="48u1", qh="4u1", d="f2"), _tq1_0),
    dtypes.tq2_0: (layout_of(qs="64u1", d="f2"), _tq2_0),
    dtypes.mxfp4: (layout_of(e="u1", qs="16u1"), _mxfp4),
}
