"""
GGUF block formats: where the bits of element i lie, after ``ggml-common.h``.

Values are exact in f64, as every product and sum of them is, and then rounded to f32 once,
as ggml's own arithmetic does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis.dtypes import DType
    from propolis.layout import Shape

Array = np.ndarray[Any, Any]

_I32, _I = np.arange(32), np.arange(256)


def dequantize(raw: Array, kind: DType) -> Array:
    """
    The values of blocks.

    Args:
        raw: u8, the last dimension whole blocks.
        kind: their format.

    Returns:
        f64, with elements in the place of bytes.
    """
    blocks = raw.reshape(-1, kind.block_bytes)
    with np.errstate(all="ignore"):
        values = _VALUES[kind.name](blocks).astype(np.float32).astype(np.float64)
    return np.asarray(values.reshape(*raw.shape[:-1], -1 if raw.size else _width(raw, kind)))


def _width(raw: Array, kind: DType) -> int:
    return int(raw.shape[-1]) // kind.block_bytes * kind.block_size


def quantizes(kind: DType) -> bool:
    """Whether the bytes of a format are defined without reference to an implementation."""
    return kind.name in _QUANTS


def quantize(x: Array, dtype: DType) -> Array:
    """The bytes of blocks, for formats of which :func:`quantizes` is true."""
    rows = x.astype(np.float32).reshape(-1, dtype.block_size)
    fields = _QUANTS[dtype.name](rows)
    raw = np.concatenate([np.ascontiguousarray(f).view(np.uint8) for f in fields], 1)
    return raw.reshape(*x.shape[:-1], dtype.nbytes(x.shape[-1]))


def _f16(b: Array, at: int) -> Array:
    return np.ascontiguousarray(b[:, at : at + 2]).view("<f2").astype(np.float64)


def _bits(b: Array, at: Array, shift: Array | int, width: int) -> Array:
    """``width`` bits from bit ``shift`` of byte ``at``, for each element."""
    return np.asarray(b[:, at].astype(np.int64) >> shift & ((1 << width) - 1))


def _signed(b: Array, at: Array) -> Array:
    return np.asarray(b[:, at].view(np.int8).astype(np.int64))


def _low32(b: Array, at: int) -> Array:
    """The 4 low bits of a format of 32."""
    return _bits(b, at + _I32 % 16, 4 * (_I32 // 16), 4)


def _fifth(b: Array, at: int) -> Array:
    return _bits(b, at + _I32 // 8, _I32 % 8, 1) << 4


def _two_bits(b: Array, at: int) -> Array:
    """Bits as q2_k, q3_k and q6_k lay them."""
    return _bits(b, at + 32 * (_I // 128) + _I % 32, 2 * (_I % 128 // 32), 2)


def _nibbles(b: Array, at: int) -> Array:
    """Bits as q4_k and q5_k lay them."""
    return _bits(b, at + 32 * (_I // 64) + _I % 32, 4 * (_I % 64 // 32), 4)


def _six_bits(b: Array, at: int) -> tuple[Array, Array]:
    """Scale and min of each element of q4_k and q5_k."""
    j = _I // 32
    k = np.minimum(j, 3), np.maximum(j, 4)
    scale = np.where(
        j < 4,
        _bits(b, at + k[0], 0, 6),
        _bits(b, at + 4 + k[1], 0, 4) | _bits(b, at + k[1] - 4, 6, 2) << 4,
    )
    low = np.where(
        j < 4,
        _bits(b, at + 4 + k[0], 0, 6),
        _bits(b, at + 4 + k[1], 4, 4) | _bits(b, at + k[1], 6, 2) << 4,
    )
    return scale, low


def _q3_k(b: Array) -> Array:
    q = _two_bits(b, 32) | _bits(b, _I % 32, _I // 32, 1) << 2
    j = _I // 16
    scale = _bits(b, 96 + j % 8, 4 * (j // 8), 4) | _bits(b, 104 + j % 4, 2 * (j // 4), 2) << 4
    return np.asarray(_f16(b, 108) * (scale - 32) * (q - 4))


def _q4_k(b: Array) -> Array:
    scale, low = _six_bits(b, 4)
    return np.asarray(_f16(b, 0) * scale * _nibbles(b, 16) - _f16(b, 2) * low)


def _q5_k(b: Array) -> Array:
    scale, low = _six_bits(b, 4)
    q = _nibbles(b, 48) | _bits(b, 16 + _I % 32, _I // 32, 1) << 4
    return np.asarray(_f16(b, 0) * scale * q - _f16(b, 2) * low)


def _q6_k(b: Array) -> Array:
    low = _bits(b, 64 * (_I // 128) + _I % 64, 4 * (_I % 128 // 64), 4)
    q = low | _two_bits(b, 128) << 4
    return np.asarray(_f16(b, 208) * _signed(b, 192 + _I // 16) * (q - 32))


# What a code of iq4_nl and iq4_xs stands for.
_IQ4: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int64
)


def _iq4_xs(b: Array) -> Array:
    j = _I // 32
    scale = _bits(b, 4 + j // 2, j % 2 * 4, 4) | _bits(b, 2 + j // 4, j % 4 * 2, 2) << 4
    q = _bits(b, 8 + 16 * j + _I % 16, _I % 32 // 16 * 4, 4)
    return np.asarray(_f16(b, 0) * (scale - 32) * _IQ4[q])


def _tq1_0(b: Array) -> Array:
    """Digit ``k`` of a number of base 3, which a byte has as a fraction in 256ths."""
    at = np.where(_I < 160, _I % 32, np.where(_I < 240, 32 + _I % 16, 48 + _I % 4))
    k = np.where(_I < 160, _I // 32, np.where(_I < 240, (_I - 160) // 16, (_I - 240) // 4))
    fraction = b[:, at].astype(np.int64) * 3**k % 256
    return np.asarray(_f16(b, 52) * (fraction * 3 // 256 - 1))


def _e2m1(code: Array) -> Array:
    """A float of 4 bits; no zero has a sign."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = np.where(exponent == 0, mantissa / 2, (1 + mantissa / 2) * 2.0 ** (exponent - 1))
    return np.asarray(np.where((code >= 8) & (size > 0), -size, size))


_VALUES: Final[Mapping[str, Callable[[Array], Array]]] = {
    "q4_0": lambda b: _f16(b, 0) * (_low32(b, 2) - 8),
    "q4_1": lambda b: _f16(b, 0) * _low32(b, 4) + _f16(b, 2),
    "q5_0": lambda b: _f16(b, 0) * ((_low32(b, 6) | _fifth(b, 2)) - 16),
    "q5_1": lambda b: _f16(b, 0) * (_low32(b, 8) | _fifth(b, 4)) + _f16(b, 2),
    "q8_0": lambda b: _f16(b, 0) * _signed(b, 2 + _I32),
    "q8_1": lambda b: _f16(b, 0) * _signed(b, 4 + _I32),
    "q2_k": lambda b: (
        _f16(b, 80) * _bits(b, _I // 16, 0, 4) * _two_bits(b, 16)
        - _f16(b, 82) * _bits(b, _I // 16, 4, 4)
    ),
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "q8_k": lambda b: (
        np.ascontiguousarray(b[:, :4]).view("<f4").astype(np.float64) * _signed(b, 4 + _I)
    ),
    "iq4_nl": lambda b: _f16(b, 0) * _IQ4[_low32(b, 2)],
    "iq4_xs": _iq4_xs,
    "tq1_0": _tq1_0,
    "tq2_0": lambda b: _f16(b, 64) * (_two_bits(b, 0) - 1),
    "mxfp4": lambda b: np.ldexp(_e2m1(_low32(b, 1)), b[:, :1].astype(np.int64) - 127),
}


# -- quantising: in f32, as ggml's quantize_row_*_ref --------------------------


def _inverse(d: Array) -> Array:
    return np.where(d == 0, np.float32(0), np.float32(1) / np.where(d == 0, np.float32(1), d))


def _half(d: Array) -> Array:
    return np.asarray(d.astype(np.float16))


def _pack(q: Array) -> Array:
    return np.asarray((q[:, :16] & 15 | (q[:, 16:] & 15) << 4).astype(np.uint8))


def _pack_fifth(q: Array) -> Array:
    words = ((q >> 4 & 1) << np.arange(32)).sum(1, keepdims=True)
    return np.asarray(words.astype("<u4"))


def _around_zero(x: Array, levels: int) -> tuple[Array, Array]:
    """``d * (q - levels)``: the element farthest from 0 is quant 0."""
    farthest = np.array([[row[np.argmax(np.abs(row))]] for row in x], np.float32).reshape(-1, 1)
    d = farthest / np.float32(-levels)
    q = (x * _inverse(d) + np.float32(levels + 0.5)).astype(np.int64)
    return d, np.clip(q, 0, 2 * levels - 1)


def _from_least(x: Array, top: int) -> tuple[Array, Array, Array]:
    """``d * q + m``."""
    low = x.min(1, keepdims=True)
    d = (x.max(1, keepdims=True) - low) / np.float32(top)
    return d, low, np.clip(((x - low) * _inverse(d) + np.float32(0.5)).astype(np.int64), 0, top)


def _bytes(x: Array) -> tuple[Array, Array]:
    """``d * q`` in 8 bits; ties go away from 0, as C's roundf does."""
    d = np.abs(x).max(1, keepdims=True) / np.float32(127)
    scaled = (x * _inverse(d)).astype(np.float64)
    return d, (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int8)


def _q4_0(x: Array) -> list[Array]:
    d, q = _around_zero(x, 8)
    return [_half(d), _pack(q)]


def _q4_1(x: Array) -> list[Array]:
    d, low, q = _from_least(x, 15)
    return [_half(d), _half(low), _pack(q)]


def _q5_0(x: Array) -> list[Array]:
    d, q = _around_zero(x, 16)
    return [_half(d), _pack_fifth(q), _pack(q)]


def _q5_1(x: Array) -> list[Array]:
    d, low, q = _from_least(x, 31)
    return [_half(d), _half(low), _pack_fifth(q), _pack(q)]


def _q8_0(x: Array) -> list[Array]:
    d, q = _bytes(x)
    return [_half(d), q]


def _q8_1(x: Array) -> list[Array]:
    d, q = _bytes(x)
    return [_half(d), _half(q.sum(1, dtype=np.int64, keepdims=True).astype(np.float32) * d), q]


def _thirds(x: Array) -> tuple[Array, Array]:
    """``d * (q - 1)``: the element farthest from 0 is quant 0 or 2."""
    d = np.abs(x).max(1, keepdims=True)
    scaled = (x * _inverse(d)).astype(np.float64)
    away = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
    return d, np.clip(away, -1, 1).astype(np.int64) + 1


def _tq1_0_of(x: Array) -> list[Array]:
    d, q = _thirds(x)
    bytes_of = []
    for first, last, digits in ((0, 160, 5), (160, 240, 5), (240, 256, 4)):
        whole = np.zeros((len(x), (last - first) // digits), np.int64)
        for k, part in enumerate(np.split(q[:, first:last], digits, 1)):
            whole += part * 3 ** (4 - k)
        bytes_of.append(-(-whole * 256 // 243))
    return [np.concatenate(bytes_of, 1).astype(np.uint8), _half(d)]


def _tq2_0_of(x: Array) -> list[Array]:
    d, q = _thirds(x)
    runs = q.reshape(-1, 2, 4, 32)
    packed = (runs << np.array([0, 2, 4, 6])[:, None]).sum(2)
    return [packed.reshape(-1, 64).astype(np.uint8), _half(d)]


def _mxfp4_of(x: Array) -> list[Array]:
    """The first of the nearest codes, under an exponent that comes of a logarithm in f32."""
    peak = np.abs(x).max(1, keepdims=True).astype(np.float64)
    whole = np.floor(np.log2(peak).astype(np.float32)).astype(np.float64)
    e = np.clip(np.where(peak > 0, whole + 125, 0), 0, 254).astype(np.int64)
    values = np.ldexp(_e2m1(np.arange(16)), e - 127).astype(np.float32)
    q = np.abs(values[:, None] - x[..., None]).argmin(2)
    return [e.astype(np.uint8), _pack(q)]


_QUANTS: Final[Mapping[str, Callable[[Array], list[Array]]]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q8_1": _q8_1,
    "tq1_0": _tq1_0_of,
    "tq2_0": _tq2_0_of,
    "mxfp4": _mxfp4_of,
}


# -- drawing ---------------------------------------------------------------------

# Bytes at which the f16 scales of each block format lie: random bits there would be NaN.
_SCALES: Final = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q8_1": (0, 2),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
    "tq1_0": (52,),
    "tq2_0": (64,),
}


def random_blocks(shape: Shape, dtype: DType, rng: np.random.Generator) -> Array:
    """Random quants under scales that are small numbers."""
    count = int(np.prod(shape)) // dtype.block_size
    raw = rng.integers(0, 256, (count, dtype.block_bytes), np.uint8)
    if dtype is dtypes.q8_k:
        raw[:, :4] = rng.normal(0, 0.1, (count, 1)).astype(np.float32).view(np.uint8)
        sums = raw[:, 4:260].view(np.int8).reshape(count, 16, 16).sum(2, dtype=np.int16)
        raw[:, 260:] = sums.view(np.uint8).reshape(count, 32)
    if dtype is dtypes.mxfp4:
        # One in eight of the few exponents whose scale is below f32's normal numbers.
        rare = rng.integers(0, 8, count) == 0
        raw[:, 0] = np.where(rare, rng.integers(0, 4, count), rng.integers(118, 127, count))
    for start in _SCALES.get(dtype.name, ()):
        scale = rng.normal(0, 0.1, (count, 1)).astype(np.float16)
        raw[:, start : start + 2] = scale.view(np.uint8)
    return raw.reshape(*shape[:-1], dtype.nbytes(shape[-1]))
