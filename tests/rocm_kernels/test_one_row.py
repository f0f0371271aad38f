"""Products of one row with blocks, in integers, where numbers may be rounded on the way."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from rounding import judge_rounded_row
from rounding import normal

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels import ops_quantized_matmul_one
from propolis_rocm_kernels import ops_quantized_matmul_rows
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import PART


FORMATS = sorted(dtypes.BLOCKS, key=str)


@pytest.fixture(scope="module")
def runtime():
    """Where numbers may be rounded on the way; see conftest.py."""
    return Runtime.start(Config(fallback="error", plugins=["rocm_hip", "rocm_kernels"]))


@pytest.fixture
def taken(counting):
    """The blocks of each launch for one row."""
    return counting(ops_quantized_matmul_one._KERNELS)


def product(device, x, dtype, rows):
    """A product with random blocks, and their values in f64."""
    depth = x.shape[-1]
    numbers = np.random.default_rng([rows, depth]).normal(size=(rows, depth))
    w = ops.quantize(Tensor.from_numpy(numbers.astype(np.float32), device), dtype)
    out = ops.qmatmul(Tensor.from_numpy(x, device), w).numpy()
    return out, ops.dequantize(w).numpy().astype(np.float64)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("rows", "depth"), [(1, 256), (37, 768), (70, 2304)])
def test_products(rocm, taken, dtype, rows, depth) -> None:
    """Of numbers whose sizes differ from part to part by many orders of magnitude."""
    rng = np.random.default_rng(depth)
    sizes = np.exp(rng.normal(0, 8, (depth // PART, 1)))
    x = (rng.normal(size=(depth // PART, PART)) * sizes).astype(np.float32).reshape(-1)
    out, w = product(rocm, x, dtype, rows)
    judge_rounded_row(out, x, w)
    assert len(taken) == 1


@pytest.mark.parametrize("dtype", [dtypes.q4_k, dtypes.q6_k, dtypes.q8_0], ids=str)
@pytest.mark.parametrize("depth", [256, 4608])
def test_more_rows_than_blocks(rocm, taken, monkeypatch, dtype, depth) -> None:
    """Blocks that have rounded the row go on to further rows of weights, in a step or several."""
    monkeypatch.setattr(ops_quantized_matmul_one, "THREADS", BLOCK)
    monkeypatch.setattr(ops_quantized_matmul_one, "_SHALLOW", 0)
    rows = 40 * rocm.compute_units + 3
    x = np.random.default_rng(0).normal(size=depth).astype(np.float32)
    out, w = product(rocm, x, dtype, rows)
    judge_rounded_row(out, x, w)
    assert taken == [rocm.compute_units]


def test_ends_of_the_range(rocm) -> None:
    """Zeros, the smallest and the largest numbers; an infinity or NaN makes every sum a NaN."""
    one = np.random.default_rng(1).normal(size=512)
    for size in (0, 1e-44, 1e-39, 1e-30, 1e30, 1e37):
        x = (one * size).astype(np.float32)
        x[:64] = 0
        out, w = product(rocm, x, dtypes.q8_0, 9)
        judge_rounded_row(out, x, w)
    for scale in (-100, 112):  # of which weights are up to 12 times as large
        w = np.full((9, 16 * 17), 0x71, np.uint8)
        w[:, ::17] = scale + 128
        x = (one * 2.0 ** (-scale)).astype(np.float32)
        blocks = Tensor.from_blocks(w.reshape(-1), dtypes.mxfp4, (9, 512), rocm)
        out = ops.qmatmul(Tensor.from_numpy(x, rocm), blocks).numpy()
        judge_rounded_row(out, x, ops.dequantize(blocks).numpy().astype(np.float64))
    for odd in (np.inf, -np.inf, np.nan):
        x = one.astype(np.float32)
        x[77] = odd
        assert np.isnan(product(rocm, x, dtypes.q8_0, 9)[0]).all()


def test_who_multiplies(rocm, taken) -> None:
    """More rows, rows that begin anywhere, rows that do not fit, and exact numerics: others."""
    (impl,) = ops_quantized_matmul_one.OPS
    w = ops.quantize(Tensor.from_numpy(np.ones((4, 64), np.float32), rocm), dtypes.q8_0)
    x = Tensor.from_numpy(np.ones((2, 66), np.float32), rocm)
    assert impl.supports(x.narrow(0, 0, 1).narrow(1, 0, 64), w) is None
    for first, rows in ((1, 1), (0, 2)):
        part = x.narrow(0, 0, rows).narrow(1, first, 64)
        assert ("bytes can be loaded" if first else "takes one row") in impl.supports(part, w)
        assert np.allclose(ops.qmatmul(part, w).numpy(), 64, rtol=1e-4)  # 1 / 127 is no f16
    wide = Tensor.from_numpy(np.ones((1, 1 << 20), np.float32), rocm)
    assert "bytes of LDS" in impl.supports(wide, ops.quantize(wide, dtypes.q8_0))
    exact = Runtime.start(Config(plugins=["rocm_hip", "rocm_kernels"], numerics="exact"))
    ones = np.ones(64, np.float32)
    assert (product(exact.device(rocm.id), ones, dtypes.q8_0, 4)[0] != 0).all()
    assert taken == []


# -- of two to four rows -----------------------------------------------------------------


@pytest.fixture
def several(counting):
    """The blocks of each launch for several rows."""
    return counting(ops_quantized_matmul_rows._KERNELS)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("rows", [2, 3, 4])
def test_several_rows(rocm, several, dtype, rows) -> None:
    """Each row is rounded as one alone, and its sums are the same to the bit."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 768)).astype(np.float32)
    x *= np.exp(rng.normal(0, 8, (rows, 1))).astype(np.float32)
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, 37, 768), rocm), dtype)
    out = rocm.empty((rows, 37), dtypes.f32)
    ops_quantized_matmul_rows.qmatmul_rows(out, Tensor.from_numpy(x, rocm), w)
    values = ops.dequantize(w).numpy().astype(np.float64)
    for row, sums in zip(x, out.numpy(), strict=True):
        judge_rounded_row(sums, row, values)
        alone = ops.qmatmul(Tensor.from_numpy(row, rocm), w).numpy()
        np.testing.assert_array_equal(sums, alone)
    assert len(several) == 1


def test_who_multiplies_several(rocm, several) -> None:
    """More rows, rows with gaps between them, deep ones, and exact numerics are for others."""
    (impl,) = ops_quantized_matmul_rows.OPS
    w = ops.quantize(Tensor.from_numpy(np.ones((4, 64), np.float32), rocm), dtypes.q8_0)
    x = Tensor.from_numpy(np.ones((5, 128), np.float32), rocm)
    assert impl.supports(x.narrow(0, 0, 3).narrow(1, 0, 64).contiguous(), w) is None
    gaps = x.narrow(0, 0, 3).narrow(1, 0, 64)
    assert "do not follow each other" in impl.supports(gaps, w)
    assert impl.supports(x.narrow(1, 0, 64).contiguous(), w).startswith("5 rows are for other")
    deep = Tensor.from_numpy(np.ones((2, 1 << 19), np.float32), rocm)
    assert "bytes of LDS" in impl.supports(deep, ops.quantize(deep, dtypes.q8_0))
    for part in (gaps, x.narrow(1, 0, 64).contiguous()):
        assert np.allclose(ops.qmatmul(part, w).numpy(), 64, rtol=1e-2)
    assert several == []


# -- of what is left to others -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in FORMATS if d.block_size == PART], ids=str)
def test_blocks_that_are_left(rocm, taken, dtype) -> None:
    """Formats that lanes take two blocks of at a time leave rows of an odd number to others."""
    x = np.random.default_rng(3).normal(size=3 * PART).astype(np.float32)
    out, w = product(rocm, x, dtype, 5)
    alone = dtype in (dtypes.q8_0, dtypes.q8_1)
    if alone:
        judge_rounded_row(out, x, w)
    else:
        np.testing.assert_allclose(out, w @ x, rtol=1e-2, atol=1e-2)
        (impl,) = ops_quantized_matmul_one.OPS
        blocks = ops.quantize(Tensor.from_numpy(np.ones((5, x.size), np.float32), rocm), dtype)
        reason = impl.supports(Tensor.from_numpy(x, rocm), blocks)
        assert reason == f"rows of 96 {dtype} elements are taken 64 at a time"
    assert len(taken) == alone


@pytest.mark.parametrize("dtype", [dtypes.q4_0, dtypes.q4_1, dtypes.q5_1, dtypes.mxfp4], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_that_begin_elsewhere(rocm, taken, several, dtype, rows) -> None:
    """Rows of a view whose blocks do not lie in pairs are for others."""
    x = np.random.default_rng(4).normal(size=(rows, 2 * PART)).astype(np.float32)
    numbers = np.random.default_rng(5).normal(size=(6, 5 * PART)).astype(np.float32)
    w = ops.quantize(Tensor.from_numpy(numbers, rocm), dtype).narrow(1, PART, 2 * PART)
    out = ops.qmatmul(Tensor.from_numpy(x, rocm), w).numpy()
    expected = x @ ops.dequantize(w).numpy().T
    np.testing.assert_allclose(out, expected, rtol=1e-2, atol=5e-2)
    assert (taken, several) == ([], [])


@pytest.mark.parametrize(
    ("rows", "depth", "blocks", "threads"),
    [
        (2560, 9728, 128, 640),  # a round of one block a unit
        (4096, 14336, 128, 1024),
        (5120, 13824, 132, 640),  # two rounds of as many
        (2048, 2048, 256, 256),  # two blocks a unit, of shallow rows
        (64, 4096, 8, 256),
    ],
)
def test_shares_of_units(rows, depth, blocks, threads) -> None:
    """Every compute unit of 132 has as many rows, or nearly, and rounds a deep row only once."""
    device = SimpleNamespace(compute_units=132, warp_size=32)
    w = SimpleNamespace(dtype=dtypes.q4_k, shape=(rows, depth), strides=(depth, 1))
    made = ops_quantized_matmul_one.plan(device, rows, w)
    assert (made.blocks, made.threads, made.lanes) == (blocks, threads, 32)
