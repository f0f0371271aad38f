"""
Quantisation to the GGUF block formats whose quants are codes.

The bytes of tq1_0, tq2_0 and mxfp4 are those that the ``gguf`` library writes.  It cannot
write iq4_nl and iq4_xs: there the peak of each group maps to the number of the table that
reaches furthest, and ggml searches further for scales of lower error, as it does for the K
formats.  The layouts are documented in ``_blocks_coded``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis_cpu_ref._blocks_coded import IQ4_VALUES
from propolis_cpu_ref._blocks_coded import MXFP4_SCALES
from propolis_cpu_ref._blocks_coded import MXFP4_VALUES
from propolis_cpu_ref._quantize_k import as_half
from propolis_cpu_ref._quantize_k import half_away
from propolis_cpu_ref._quantize_k import inverse
from propolis_cpu_ref._quantize_k import over
from propolis_cpu_ref._quantize_k import signed_peak
from propolis_cpu_ref._quantize_k import spread


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dtypes import DType

# Half way between neighbours; exact.  What is a tie goes to the lower one.
_BETWEEN: Final = (IQ4_VALUES[1:] + IQ4_VALUES[:-1]) / np.float32(2)


def _iq4_codes(x: np.ndarray) -> np.ndarray:
    """The codes of the nearest numbers of the table."""
    return np.searchsorted(_BETWEEN, x, side="left").astype(np.uint8)


def _iq4_nl(x: np.ndarray, blocks: np.ndarray) -> None:
    d = as_half(signed_peak(x) / IQ4_VALUES[0])
    blocks["d"] = d[:, 0]
    blocks["qs"] = spread(_iq4_codes(over(x, d)), 16, 4)


def _iq4_xs(x: np.ndarray, blocks: np.ndarray) -> None:
    groups = x.reshape(len(x), 8, 32)
    peaks = signed_peak(groups.reshape(-1, 32)).reshape(len(x), 8)
    d = as_half(signed_peak(peaks) / IQ4_VALUES[0] / np.float32(-32))
    scales = np.rint(over(peaks / IQ4_VALUES[0], d)).clip(-32, 31)
    step = (d * scales)[:, :, np.newaxis]
    bits = (scales + 32).astype(np.uint8)
    blocks["d"] = d[:, 0]
    blocks["scales_l"] = bits[:, ::2] & 15 | (bits[:, 1::2] & 15) << 4
    blocks["scales_h"] = np.bitwise_or.reduce(
        (bits >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16), axis=1
    )
    blocks["qs"] = spread(_iq4_codes(over(groups, step)).reshape(x.shape), 16, 4)


def _ternary(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and quants of ``d * (q - 1)``: the largest magnitude is 1."""
    d = np.abs(x).max(axis=1, keepdims=True)
    return d, (half_away(x * inverse(d)).clip(-1, 1) + 1).astype(np.uint8)


def _digits(q: np.ndarray, count: int) -> np.ndarray:
    """The bytes of digits of 3, ``count`` in each."""
    places = 3 ** np.arange(4, 4 - count, -1, dtype=np.uint16)
    whole = (q.reshape(len(q), count, -1) * places[:, np.newaxis]).sum(axis=1, dtype=np.uint16)
    return np.asarray((whole * np.uint16(256) + np.uint16(242)) // np.uint16(243))


def _tq1_0(x: np.ndarray, blocks: np.ndarray) -> None:
    d, q = _ternary(x)
    blocks["d"] = d[:, 0]
    blocks["qs"][:, :32] = _digits(q[:, :160], 5)
    blocks["qs"][:, 32:] = _digits(q[:, 160:240], 5)
    blocks["qh"] = _digits(q[:, 240:], 4)


def _tq2_0(x: np.ndarray, blocks: np.ndarray) -> None:
    d, q = _ternary(x)
    blocks["d"], blocks["qs"] = d[:, 0], spread(q, 32, 2)


def _mxfp4(x: np.ndarray, blocks: np.ndarray) -> None:
    # The logarithm is rounded to f32, as gguf's: what is just below 2**n may count as 2**n.
    whole = np.floor(np.log2(np.abs(x).max(axis=1)))
    e = (whole - np.float32(2) + np.float32(127)).clip(0, 254).astype(np.uint8)
    d = MXFP4_SCALES.take(e)[:, np.newaxis]
    codes = np.zeros(x.shape, np.uint8)
    least = np.abs(x)  # the error of code 0
    for code in range(1, 16):
        error = np.abs(d * MXFP4_VALUES[code] - x)
        nearer = error < least
        codes[nearer] = code
        np.minimum(error, least, out=least)
    blocks["e"], blocks["qs"] = e, spread(codes, 16, 4)


CODED_QUANTIZERS: Final[dict[DType, Callable[[np.ndarray, np.ndarray], None]]] = {
    dtypes.iq4_nl: _iq4_nl,
    dtypes.iq4_xs: _iq4_xs,
    dtypes.tq1_0: _tq1_0,
    dtypes.tq2_0: _tq2_0,
    dtypes.mxfp4: _mxfp4,
}
