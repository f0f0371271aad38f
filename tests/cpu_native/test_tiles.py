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


def weight(dtype):
    """The reference's blocks of random numbers."""
    values = np.random.default_rng(7).normal(0, 1, (ROWS, WIDTH)).astype(np.float32)
    return ops.quantize(Tensor.from_numpy(values), dtype)


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


def activations(rows):
    """Rows of which each third has an element far above the others, as in language models."""
    x = np.random.default_rng(8).normal(0, 1, (rows, WIDTH)).astype(np.float32)
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
def test_a_row_is_the_same_alone_and_among_others(dtype):
    """To the bit, so that an answer does not depend on who else is in its batch."""
    w = weight(dtype)
    rows = 203
    x = activations(rows)
    together = Tensor.from_numpy(np.zeros((rows, ROWS), np.float32))
    ops_quantized.qmatmul_rounded(together, Tensor.from_numpy(x), w)
    for row in [*range(0, rows, 7), rows - 2, rows - 1]:
        alone = Tensor.from_numpy(np.zeros((1, ROWS), np.float32))
        ops_quantized.qmatmul_rounded(alone, Tensor.from_numpy(x[row : row + 1]), w)
        np.testing.assert_array_equal(alone.numpy()[0], together.numpy()[row])


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_fit(dtype, sign):
    """
    Factors at their limits, all of one sign, whose sums some levels keep in 16 bits.

    Weights are what the format has at its ends: the value of most magnitude in each block.
    """
    ends = np.tile(np.float32([1, -1]), (ROWS, WIDTH // 2)) * sign
    w = ops.quantize(Tensor.from_numpy(ends), dtype)
    values = values_of(w, dtype)
    for x in (np.sign(values[:3]), np.ones((3, WIDTH)), -np.ones((3, WIDTH))):
        given = Tensor.from_numpy(x.astype(np.float32))
        out = Tensor.from_numpy(np.full((3, ROWS), np.nan, np.float32))
        ops_quantized.qmatmul_rounded(out, given, w)
        np.testing.assert_allclose(out.numpy(), x @ values.T, atol=2e-3 * np.abs(values).max())
    same = ops.quantize(Tensor.from_numpy(np.full((ROWS, WIDTH), sign, np.float32)), dtype)
    out = Tensor.from_numpy(np.full((1, ROWS), np.nan, np.float32))
    ops_quantized.qmatmul_rounded(out, Tensor.from_numpy(np.ones((1, WIDTH), np.float32)), same)
    np.testing.assert_allclose(out.numpy()[0], values_of(same, dtype).sum(1), rtol=1e-4)


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
        native().qmatmul(np.zeros((1, 16), np.float32), x, tiles, "q4_0", 0, 1, 16, 32, 1, 0)
    with pytest.raises(TypeError, match="no such block format"):
        native().repack(tiles, tiles, "q9_9", 16, 32, 1)
