"""Products of few rows with blocks, as bytes on matrix instructions, where rounding is allowed."""

from __future__ import annotations

import numpy as np
import pytest
from rounding import judge_rounded_row
from rounding import normal

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels import ops_quantized_matmul_bytes as few


FORMATS = sorted(dtypes.BLOCKS, key=str)


@pytest.fixture(scope="module")
def runtime():
    """Where numbers may be rounded on the way; see conftest.py."""
    return Runtime.start(Config(fallback="error", plugins=["rocm_hip", "rocm_kernels"]))


def judge(device, x, w):
    """The products, of activations rounded to 16 bits, 256 with a scale."""
    given, out = Tensor.from_numpy(x, device), device.empty((*x.shape[:-1], w.shape[0]), dtypes.f32)
    assert few._takes(given, w) is None
    few.qmatmul_bytes(out, given, w)
    values = ops.dequantize(w.contiguous()).numpy().astype(np.float64)
    rows = zip(out.numpy().reshape(-1, w.shape[0]), x.reshape(-1, x.shape[-1]), strict=True)
    for row, of in rows:
        judge_rounded_row(row, of, values, together=256)


def quantized(device, dtype, *shape):
    """Random weights."""
    return ops.quantize(Tensor.from_numpy(normal(dtypes.f32, *shape, seed=1), device), dtype)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns"), [((2,), 40), ((4,), 16), ((5,), 1), ((2, 4), 33), ((9,), 17), ((4, 4), 50)]
)
def test_products(rocm, dtype, rows, columns) -> None:
    """Of all numbers of rows that there are kernels for, with depths that end within a chunk."""
    for depth in (256, 2304) if dtype.block_size == 256 else (128, 384, 2432):
        rng = np.random.default_rng([depth, *rows])
        sizes = np.exp(rng.normal(0, 8, (*rows, 1)))
        x = (rng.normal(size=(*rows, depth)) * sizes).astype(np.float32)
        judge(rocm, x, quantized(rocm, dtype, columns, depth))


@pytest.mark.parametrize("dtype", [dtypes.q4_0, dtypes.q4_k, dtypes.q6_k, dtypes.tq1_0], ids=str)
@pytest.mark.parametrize("rows", [3, 16])
def test_more_weights_than_blocks_take_at_once(rocm, monkeypatch, dtype, rows) -> None:
    """A block goes on to further rows of weights, whether or not all its warps have a part."""
    monkeypatch.setattr(few, "_WIDE", 1)
    columns = 16 * rocm.compute_units * 3 + 37
    for depth in (256, 2304):
        judge(
            rocm,
            normal(dtypes.f32, rows, depth, seed=depth),
            quantized(rocm, dtype, columns, depth),
        )


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_weights_of_a_larger_tensor(rocm, dtype) -> None:
    """Rows of weights are taken where they lie, at whatever bytes those begin, beside others."""
    w = quantized(rocm, dtype, 60, 2048)
    taken = 0
    for first in (256, 512, 768, 1024):
        part = w.narrow(0, 7, 41).narrow(1, first, 768)
        x = normal(dtypes.f32, 3, 768, seed=first)
        if few._takes(Tensor.from_numpy(x, rocm), part) is None:
            judge(rocm, x, part)
            taken += 1
    assert taken


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_what_is_not_finite(rocm, dtype) -> None:
    """An infinity and NaN make NaN of their own row's products, and of no other's."""
    x = normal(dtypes.f32, 5, 512)
    x[1, 3], x[2, 300], x[4] = np.inf, np.nan, 0
    w = quantized(rocm, dtype, 20, 512)
    out = rocm.empty((5, 20), dtypes.f32)
    few.qmatmul_bytes(out, Tensor.from_numpy(x, rocm), w)
    found = out.numpy()
    assert np.isnan(found[1:3]).all()
    assert np.isfinite(found[[0, 3, 4]]).all()
    assert not found[4].any()


def test_large_scales(rocm) -> None:
    """Nothing overflows of which the products are finite, nor vanishes."""
    w = quantized(rocm, dtypes.mxfp4, 16, 512)
    blocks = w.to("cpu").numpy().reshape(-1).copy()
    for exponent in (8, 240):
        blocks.reshape(-1, 17)[:, 0] = exponent
        scaled = Tensor.from_blocks(blocks, dtypes.mxfp4, w.shape, rocm)
        x = normal(dtypes.f32, 4, 512) * np.float32(2.0 ** (127 - exponent))
        judge(rocm, x, scaled)


@pytest.mark.parametrize("rows", [3, 5, 16])
@pytest.mark.parametrize("dtype", [dtypes.q4_0, dtypes.q4_k, dtypes.q6_k, dtypes.q8_k], ids=str)
def test_small_and_large_numbers(rocm, dtype, rows) -> None:
    """No product loses bits to what is next to nothing, nor is infinite, where it is not."""
    w = quantized(rocm, dtype, 16, 512)
    for size in (1e-37, 3e-30, 1e30, 1e36):
        judge(rocm, normal(dtypes.f32, rows, 512) * np.float32(size), w)


def test_large_scales_of_q8_k(rocm) -> None:
    """They are in f32: sums times them are finite where products are."""
    w = quantized(rocm, dtypes.q8_k, 16, 512)
    blocks = w.to("cpu").numpy().reshape(-1, 292).copy()
    blocks[:, :4] = np.full(len(blocks), 1e33, np.float32).view(np.uint8).reshape(-1, 4)
    scaled = Tensor.from_blocks(blocks.reshape(-1), dtypes.q8_k, w.shape, rocm)
    for rows in (3, 5, 16):
        judge(rocm, normal(dtypes.f32, rows, 512) * np.float32(1e-6), scaled)


def test_who_takes_them(rocm) -> None:
    """Two to sixteen rows that lie side by side, of weights that do not begin anywhere."""
    w = quantized(rocm, dtypes.q4_k, 16, 512)
    for rows in (1, 2, 16, 17):
        reason = few._takes(Tensor.from_numpy(normal(dtypes.f32, rows, 512), rocm), w)
        assert (reason is None) == (2 <= rows <= 16)
    apart = Tensor.from_numpy(normal(dtypes.f32, 4, 1024), rocm).narrow(1, 0, 512)
    assert "do not follow each other" in few._takes(apart, w)
    odd = quantized(rocm, dtypes.mxfp4, 16, 64)
    assert "no 4 bytes" in few._takes(Tensor.from_numpy(normal(dtypes.f32, 4, 64), rocm), odd)
