"""Block formats on a device, against the CPU's exact values."""

from __future__ import annotations

import numpy as np
import pytest
from rounding import SMALLEST
from rounding import UNIT

from propolis import Layout
from propolis import Tensor
from propolis import dtypes
from propolis import ops


FORMATS = sorted(dtypes.BLOCKS, key=str)


@pytest.fixture
def blocks(rocm, runtime):
    """Tensors of the same random quants, on the device and on the CPU."""

    def make(dtype, rows, width, seed=0):
        rng = np.random.default_rng([seed, rows, width])
        numbers = (rng.normal(size=(rows, width)) * rng.lognormal(size=(rows, 1))).astype(
            np.float32
        )
        host = ops.quantize(Tensor.from_numpy(numbers, runtime.cpu), dtype)
        return host.to(rocm), host

    return make


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("to", sorted(dtypes.FLOATS, key=str), ids=str)
def test_values_are_exact(blocks, dtype, to) -> None:
    """Every value of every format, bit for bit."""
    there, here = blocks(dtype, 5, 768)
    expected = ops.dequantize(here, to).numpy()
    assert expected.tobytes() == ops.dequantize(there, to).numpy().tobytes()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_any_bytes(rocm, runtime, dtype) -> None:
    """Of whatever bytes, infinite and NaN scales among them, values are those of the CPU."""
    raw = np.random.default_rng(7).integers(0, 256, (40, 3 * dtype.block_bytes), np.uint8)
    shape = (40, 3 * dtype.block_size)
    there, here = (
        ops.dequantize(Tensor.from_blocks(raw.reshape(-1), dtype, shape, device)).numpy()
        for device in (rocm, runtime.cpu)
    )
    one = np.float32(np.nan)
    there, here = (np.where(np.isnan(x), one, x) for x in (there, here))
    assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize(
    "dtype", [dtypes.q4_1, dtypes.q8_0, dtypes.q4_k, dtypes.mxfp4, dtypes.tq1_0], ids=str
)
def test_rows_of_a_table(rocm, blocks, dtype) -> None:
    """Rows by id, of each dtype of ids; zeros for what is masked or outside."""
    table, here = blocks(dtype, 300, 512)
    values = ops.dequantize(here).numpy()
    for kind in (np.uint8, np.int16, np.int32, np.uint32, np.int64):
        masked = np.iinfo(kind).max
        ids = np.array([[0, 7, masked], [254, 1, 7]], kind)
        expected = np.where((ids == masked)[..., None], 0, values[np.where(ids == masked, 0, ids)])
        actual = ops.embedding(Tensor.from_numpy(ids, rocm), table).numpy()
        assert expected.tobytes() == actual.tobytes()
        half = ops.embedding(Tensor.from_numpy(ids, rocm), table, dtypes.f16).numpy()
        assert expected.astype(np.float16).tobytes() == half.tobytes()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("m", [1, 2, 4, 8, 70])
@pytest.mark.parametrize("kind", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_products(rocm, blocks, dtype, m, kind) -> None:
    """Products with weights as they are: few rows of activations, and many."""
    there, here = blocks(dtype, 37, 768)
    x = np.random.default_rng(m).normal(size=(m, 768)).astype(kind.numpy)
    actual = ops.qmatmul(Tensor.from_numpy(x, rocm), there).numpy()
    w = ops.dequantize(here).numpy().astype(np.float64)
    wide = x.astype(np.float64)
    unit = {dtypes.f32: 2.0**-24, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}[kind]
    expected = wide @ w.T
    allowed = 1.25 * unit * np.abs(expected) + 32 * 2.0**-24 * (np.abs(wide) @ np.abs(w).T)
    assert (np.abs(actual.astype(np.float64) - expected) <= allowed).all()


@pytest.mark.parametrize("kind", [dtypes.f64, dtypes.f8e4m3, dtypes.f8e5m2], ids=str)
@pytest.mark.parametrize("m", [1, 9])
def test_products_of_seldom_activations(rocm, blocks, kind, m) -> None:
    """Of f64 sums are in f64, of f8 in f32, with weights of any format."""
    x = np.random.default_rng(m).normal(size=(m, 256)).astype(kind.numpy)
    wide = x.astype(np.float64)
    for dtype in FORMATS:
        there, here = blocks(dtype, 7, 256)
        w = ops.dequantize(here, dtypes.f64).numpy()
        actual = ops.qmatmul(Tensor.from_numpy(x, rocm), there).numpy().astype(np.float64)
        expected, terms = wide @ w.T, np.abs(wide) @ np.abs(w).T
        if kind is dtypes.f64:
            assert (np.abs(actual - expected) <= 1e-14 * terms).all()
        else:
            allowed = UNIT[kind] * 1.25 * np.abs(expected) + SMALLEST[kind] + 1e-5 * terms
            inside = np.abs(expected) < 440
            assert (np.abs(actual - expected) <= allowed)[inside].all()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_blocks_are_those_of_the_cpu(rocm, runtime, dtype) -> None:
    """Bytes of each format: values of any size, peaks of both signs, zeros, blocks of one sign."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(24, 512)) * rng.lognormal(sigma=3, size=(24, 1))).astype(np.float32)
    x[3] = 0
    x[4] = np.abs(x[4])
    x[5] = -np.abs(x[5])
    x[6] = np.round(x[6] / np.abs(x[6]).max() * 3)  # the largest of both signs, many times
    for kind in (dtypes.f32, dtypes.f64, dtypes.f16):
        given = np.clip(x, -6e4, 6e4).astype(kind.numpy)
        there = ops.quantize(Tensor.from_numpy(given, rocm), dtype)
        here = ops.quantize(Tensor.from_numpy(given, runtime.cpu), dtype)
        assert here.numpy().tobytes() == there.numpy().tobytes()
    apart = Tensor.from_numpy(np.ascontiguousarray(x.T), rocm).transpose(0, 1)
    expected = ops.quantize(Tensor.from_numpy(x, runtime.cpu), dtype).numpy()
    assert expected.tobytes() == ops.quantize(apart, dtype).numpy().tobytes()


def test_exponents_of_blocks(rocm, runtime) -> None:
    """The exponent of mxfp4 is the CPU's at both sides of every power of two."""
    powers = np.arange(2, 255, dtype=np.uint32)[:, None] << 23
    peaks = (powers + np.arange(-100, 100)).astype(np.uint32).view(np.float32).reshape(-1)
    x = np.zeros((len(peaks), 32), np.float32)
    x[:, 31], x[:, 2] = -peaks, peaks * np.float32(0.3)
    there, here = (
        ops.quantize(Tensor.from_numpy(x, device), dtypes.mxfp4).numpy()
        for device in (rocm, runtime.cpu)
    )
    assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize("kind", [dtypes.f32, dtypes.bf16, dtypes.f64], ids=str)
@pytest.mark.parametrize(
    "dtype",
    [dtypes.q4_k, dtypes.q8_0, dtypes.q5_1, dtypes.mxfp4, dtypes.iq4_xs, dtypes.tq2_0],
    ids=str,
)
def test_experts_in_blocks(rocm, blocks, dtype, kind, tokens) -> None:
    """Products with the weights of each token's experts: few tokens, many; zeros for no expert."""
    there, here = blocks(dtype, 6 * 70, 256)
    w = ops.dequantize(here, dtypes.f64).numpy().reshape(6, 70, 256)
    rng = np.random.default_rng(tokens)
    x = rng.normal(size=(tokens, 1, 256)).astype(kind.numpy)
    chosen = rng.integers(0, 5, (tokens, 3))  # nobody takes the last one
    given = Tensor.from_numpy(x, rocm), there.reshape(6, 70, 256)
    actual = ops.moe_qmatmul(*given, Tensor.from_numpy(chosen, rocm)).numpy().astype(np.float64)
    wide = x.astype(np.float64)
    expected = np.einsum("tjk,tjnk->tjn", np.broadcast_to(wide, (tokens, 3, 256)), w[chosen])
    terms = np.einsum("tk,tjnk->tjn", np.abs(wide[:, 0]), np.abs(w[chosen]))
    unit = {dtypes.f64: 2.0**-53, dtypes.f32: 2.0**-24, dtypes.bf16: 2.0**-8}[kind]
    allowed = 1.25 * unit * np.abs(expected) + 32 * min(unit, 2.0**-24) * terms
    assert (np.abs(actual - expected) <= allowed).all()
    chosen[0] = -1, 6, 2**62
    actual = ops.moe_qmatmul(*given, Tensor.from_numpy(chosen, rocm)).numpy()
    assert (actual[0] == 0).all()


@pytest.mark.parametrize("dtype", [dtypes.q8_0, dtypes.mxfp4], ids=str)
def test_rows_with_gaps(rocm, blocks, dtype) -> None:
    """Every other row of a tensor of blocks, of odd bytes too, in products, values and copies."""
    there, here = blocks(dtype, 12, 64)

    def thin(t):
        return Tensor(t.storage, Layout((6, 64), (128, 1), 64), t.dtype, t.device)

    values = ops.dequantize(here).numpy()[1::2]
    assert values.tobytes() == ops.dequantize(thin(there)).numpy().tobytes()
    assert here.numpy()[1::2].tobytes() == ops.copy(thin(there)).numpy().tobytes()
    x = np.eye(64, dtype=np.float32)
    actual = ops.qmatmul(Tensor.from_numpy(x, rocm), thin(there)).numpy()
    assert (values.T == actual).all()
