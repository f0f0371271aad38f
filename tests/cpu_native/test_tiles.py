"""Repacked weights: what the gguf library reads comes out, and the file's bits come back."""

from __future__ import annotations

import numpy as np
import pytest
from bytes_of_activations import most_off
from gguf import GGMLQuantizationType
from gguf import dequantize

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_cpu_native import ops_quantized
from propolis_cpu_native._native import native


FORMATS = sorted(ops_quantized.FORMATS, key=lambda dtype: dtype.name)
ROWS, WIDTH = 37, 512


def weight(dtype, width=WIDTH):
    """The reference's blocks of random numbers."""
    values = np.random.default_rng(7).normal(0, 1, (ROWS, width)).astype(np.float32)
    return ops.quantize(Tensor.from_numpy(values), dtype)


# Where a block has its scales of 16 bits.
HALVES = {
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl", "iq4_xs"), (0,)),
    **dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (0, 2)),
    "mxfp4": (),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q6_k": (208,),
    "tq1_0": (52,),
    "tq2_0": (64,),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
def test_the_bits_come_back(dtype):
    """A repacked weight takes what the file has (and 5 % more at most), and restores it exactly."""
    w = weight(dtype)
    prepared = ops_quantized.prepare(w)
    np.testing.assert_array_equal(prepared.restore().array, w.array)
    whole_tiles = -(-ROWS // 16) * 16 / ROWS
    limit = 1.23 if dtype is dtypes.tq1_0 else 1.05  # 1.69 bits an element become 2.06
    assert prepared.nbytes <= limit * whole_tiles * w.nbytes


def values_of(w, dtype):
    """A weight's numbers, as the gguf library reads them."""
    kind = GGMLQuantizationType[dtype.name.upper()]
    return dequantize(np.asarray(w.array), kind).astype(np.float64)


def activations(rows, width=WIDTH):
    """Rows of which each third has an element far above the others, as in language models."""
    x = np.random.default_rng(8).normal(0, 1, (rows, width)).astype(np.float32)
    x[::3, 5] = 300
    return x


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
@pytest.mark.parametrize("tokens", [1, 3, 13])
def test_products_are_those_of_what_gguf_reads(dtype, tokens):
    """Products in float64 with the gguf library's values, to 2e-5 of the largest."""
    w = weight(dtype)
    values = values_of(w, dtype)
    x = activations(tokens)
    out = Tensor.from_numpy(np.full((tokens, ROWS), np.nan, np.float32))
    ops_quantized.qmatmul(out, Tensor.from_numpy(x), w)
    off = np.abs(out.numpy() - x.astype(np.float64) @ values.T)
    assert off.max() <= 2e-5 * np.abs(x).max() * np.abs(values).max() * 8


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
@pytest.mark.parametrize("tokens", [1, 3, 13, 203])
def test_products_of_rounded_activations(dtype, tokens):
    """
    Off by what 8 bits of each 32 activations may lose, or 16 where one is above ten times the mean.

    Half a step of each, times its weight; and most of what is lost that way is.
    """
    w = weight(dtype)
    values = values_of(w, dtype)
    x = activations(tokens)
    out = Tensor.from_numpy(np.full((tokens, ROWS), np.nan, np.float32))
    ops_quantized.qmatmul_rounded(out, Tensor.from_numpy(x), w)
    most = most_off(x, values)
    off = np.abs(out.numpy() - x.astype(np.float64) @ values.T)
    # A low byte of -128 becomes -127, and sums are in f32.
    slack = 2e-5 * np.abs(x).max(-1, keepdims=True) * np.abs(values).max()
    assert (off <= most + slack).all()
    assert np.median(off / most) >= 0.01  # bytes it is, which this test is about


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
@pytest.mark.parametrize("blocks", [1, 3, 16, 17])
def test_a_row_is_the_same_alone_and_among_others(dtype, blocks):
    """
    To the bit, so that an answer does not depend on who else is in its batch.

    Beside rows that are not finite too, which are NaN alone and among others.
    """
    width = blocks * dtype.block_size
    w = weight(dtype, width)
    rows = 203
    x = activations(rows, width)
    x[14] = np.inf
    x[21, :20] = -np.inf
    x[28, 7] = np.nan
    x[35] = 1e-42
    together = Tensor.from_numpy(np.zeros((rows, ROWS), np.float32))
    ops_quantized.qmatmul_rounded(together, Tensor.from_numpy(x), w)
    for row in [*range(0, rows, 7), rows - 2, rows - 1]:
        alone = Tensor.from_numpy(np.zeros((1, ROWS), np.float32))
        ops_quantized.qmatmul_rounded(alone, Tensor.from_numpy(x[row : row + 1]), w)
        np.testing.assert_array_equal(alone.numpy()[0], together.numpy()[row])
        assert np.isnan(alone.numpy()).all() == (row in (14, 21, 28))


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
@pytest.mark.parametrize("bits", [0x00, 0x7F, 0x80, 0xFF])
def test_the_largest_sums_fit(dtype, bits):
    """
    Factors at their limits, all of one sign, whose sums some levels keep in 16 bits.

    All bits of a weight's elements and scales are 0 or 1 (those with signs also 127 and -128), and
    bytes of activations are 127, upper ones too where a part of a row stands out.
    """
    raw = np.full((ROWS, WIDTH // dtype.block_size, dtype.block_bytes), bits, np.uint8)
    for at in HALVES[dtype.name]:
        raw[..., at : at + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    if dtype.name == "mxfp4":
        raw[..., 0] = 127  # 2**0
    w = Tensor.from_blocks(raw.reshape(-1), dtype, (ROWS, WIDTH))
    values = values_of(w, dtype)
    outstanding = np.where(np.arange(WIDTH) < 32, 1000, 1)
    x = np.array([np.ones(WIDTH), -np.ones(WIDTH), np.sign(values[0]), outstanding, -outstanding])
    given = Tensor.from_numpy(x.astype(np.float32))
    out = Tensor.from_numpy(np.full((len(x), ROWS), np.nan, np.float32))
    ops_quantized.qmatmul_rounded(out, given, w)
    terms = np.abs(x) @ np.abs(values).T
    assert (np.abs(out.numpy() - x @ values.T) <= 1e-5 * terms + 1e-6).all()


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
def test_what_stands_beside_an_outlier_is_kept(dtype):
    """Beside 300 bytes would lose 31 of 512 elements, which is 6 % of the others' squares."""
    w = weight(dtype)
    values = values_of(w, dtype)
    x = np.random.default_rng(10).normal(0, 1, (203, WIDTH)).astype(np.float32)
    usual = ((x.astype(np.float64) @ values.T) ** 2).sum(1)
    x[::3, 5] = 300
    out = Tensor.from_numpy(np.full((203, ROWS), np.nan, np.float32))
    ops_quantized.qmatmul_rounded(out, Tensor.from_numpy(x), w)
    errors = ((out.numpy() - x.astype(np.float64) @ values.T) ** 2).sum(1)
    assert (errors / usual).max() <= 2e-4


def test_a_size_that_does_not_fit_is_refused():
    """The module itself never reads beyond a buffer."""
    tiles = np.zeros(10, np.uint8)
    x = np.zeros((1, 32), np.float32)
    with pytest.raises(TypeError, match="size does not fit"):
        native().qmatmul(np.zeros((1, 16), np.float32), x, tiles, "q4_0", 0, 1, 16, 32, 1, 0, 0)
    with pytest.raises(TypeError, match="no such block format"):
        native().repack(tiles, tiles, "q9_9", 16, 32, 1)
