"""Block formats on a device, against the CPU's exact values."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("dtype", [dtypes.q4_1, dtypes.q8_0, dtypes.q4_k], ids=str)
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


def test_activations_in_parts(rocm, blocks) -> None:
    """Of f64 the product is done in parts, on the device too."""
    there, here = blocks(dtypes.q4_1, 8, 64)
    x = np.random.default_rng(0).normal(size=(3, 64))
    expected = x @ ops.dequantize(here, dtypes.f64).numpy().T
    actual = ops.qmatmul(Tensor.from_numpy(x, rocm), there).numpy()
    assert np.abs(actual - expected).max() < 1e-13 * np.abs(expected).max()


def test_rows_with_gaps(rocm, blocks) -> None:
    """Every other row of a tensor of blocks, in products and as values."""
    there, here = blocks(dtypes.q8_0, 12, 64)

    def thin(t):
        return Tensor(t.storage, Layout((6, 64), (128, 1), 64), t.dtype, t.device)

    values = ops.dequantize(here).numpy()[1::2]
    assert values.tobytes() == ops.dequantize(thin(there)).numpy().tobytes()
    x = np.eye(64, dtype=np.float32)
    actual = ops.qmatmul(Tensor.from_numpy(x, rocm), thin(there)).numpy()
    assert (values.T == actual).all()
