"""Products of few rows with weights of the same 16 or 8 bits, on matrix instructions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels import ops_matmul_few as few
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions


BYTES = [dtypes.f8e4m3, dtypes.f8e5m2]
TYPES = [dtypes.f16, dtypes.bf16, *BYTES]
LOST = {
    dtypes.f16: (2.0**-11, 0),
    dtypes.bf16: (2.0**-8, 0),
    dtypes.f8e4m3: (2.0**-4, 2.0**-10),
    dtypes.f8e5m2: (2.0**-3, 2.0**-17),
}
"""Of a result, when it is rounded: of it, or at least."""


@pytest.fixture(scope="module", params=["fast", "exact"])
def runtime(request):
    """Nothing is rounded that others do not round: whatever the numerics."""
    plugins = ["rocm_hip", "rocm_kernels"]
    return Runtime.start(Config(fallback="error", plugins=plugins, numerics=request.param))


@pytest.fixture(autouse=True)
def instructions(request, rocm):
    """Skips what an AMD GPU, never the simulator, has no matrix instructions for."""
    asked = getattr(request.node, "callspec", None)
    dtype = asked.params.get("dtype", dtypes.f16) if asked else dtypes.f16
    arch, of = rocm.properties.arch, dtypes.bf16 if dtype is dtypes.bf16 else dtypes.f16
    if arch.startswith("gfx") and not has_instructions(arch, of):
        pytest.skip(f"{arch} has no matrix instructions for {dtype}")


@pytest.fixture(autouse=True)
def taken(counting):
    """The blocks of each launch."""
    return counting(few._KERNELS)


def numbers(dtype, *shape, seed=0):
    """Random ones that the dtype has."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype.numpy)


def judge(out, x, w, bias=None):
    """Products are within what sums in f32, and the last rounding, may lose."""
    rows = math.prod(x.shape[:-1])
    a, b = x.astype(np.float64).reshape(rows, w.shape[1]), w.astype(np.float64)
    expected = a @ b.T
    terms = np.abs(a) @ np.abs(b).T
    if bias is not None:
        expected, terms = expected + bias.astype(np.float64), terms + np.abs(bias)
    found = ops.cast(out, dtypes.f64).numpy().reshape(expected.shape)
    part, least = LOST[out.dtype]
    allowed = np.maximum(part * np.abs(expected), least) + 2.0**-20 * terms
    assert (np.abs(found - expected) <= allowed).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("rows", "n"),
    [
        ((1,), 21),
        ((2,), 1),
        ((2, 4), 37),
        ((8,), 16),
        ((9,), 40),
        ((4, 4), 15),
        ((17,), 33),
        ((32,), 64),
    ],
)
def test_products(rocm, taken, dtype, rows, n, biased) -> None:
    """Of all numbers of rows that there are kernels for, with depths that end anywhere in turns."""
    for depth in (32, 96, 576, 1184):
        x, w, bias = numbers(dtype, *rows, depth), numbers(dtype, n, depth), numbers(dtype, n)
        given = [Tensor.from_numpy(each, rocm) for each in (x, w, bias)[: 3 if biased else 2]]
        judge(ops.linear(*given), x, w, bias if biased else None)
    assert taken == [-(-n // 16)] * 4


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rows", [3, 16, 20])
def test_parts_of_larger_tensors(rocm, taken, dtype, rows) -> None:
    """Rows of weights and a bias are taken where they lie; what lies around them has no part."""
    w, bias = numbers(dtype, 60, 320), numbers(dtype, 60, 3)
    w[:7], w[48:], w[:, :64], w[:, 288:] = np.nan, np.nan, np.nan, np.nan
    bias[:, [0, 2]] = np.nan
    x = numbers(dtype, rows, 224)
    part = Tensor.from_numpy(w, rocm).narrow(0, 7, 41).narrow(1, 64, 224)
    shift = Tensor.from_numpy(bias, rocm).narrow(0, 7, 41).narrow(1, 1, 1).reshape(41)
    out = ops.linear(Tensor.from_numpy(x, rocm), part, shift)
    judge(out, x, w[7:48, 64:288], bias[7:48, 1])
    assert taken == [3]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rows", [5, 12, 32])
def test_what_is_not_finite(rocm, taken, dtype, rows) -> None:
    """An infinity and NaN make NaN of their own row's products, and of no other's."""
    x, w = numbers(dtype, rows, 544), numbers(dtype, 20, 544)
    x[1, 3], x[2, 543], x[4] = np.inf, np.nan, 0
    w[5, 3] = 0
    out = ops.linear(Tensor.from_numpy(x, rocm), Tensor.from_numpy(w, rocm)).numpy()
    assert not np.isfinite(out[1]).any()
    assert np.isnan(out[2]).all()
    assert np.isfinite(np.delete(out, [1, 2], 0)).all()
    assert not out[4].any()
    assert len(taken) == 1


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("rows", [8, 16, 32])
def test_all_numbers_of_a_byte(rocm, taken, dtype, rows) -> None:
    """Each is itself times one, and less than one, wherever in a row it is."""
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy).reshape(8, 32)
    codes = np.where(np.isfinite(codes.astype(np.float32)), codes, np.zeros_like(codes))
    eye = np.eye(32, dtype=np.float32)
    for first in range(0, 32, rows):
        for one in (1, 0.25):
            x = (eye[first : first + rows] * one).astype(dtype.numpy)
            out = ops.linear(Tensor.from_numpy(x, rocm), Tensor.from_numpy(codes, rocm)).numpy()
            expected = codes.astype(np.float32).T[first : first + rows] * np.float32(one)
            np.testing.assert_array_equal(out, expected.astype(dtype.numpy))
    assert len(taken) == 2 * 32 // rows


@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_many_rows_of_bytes(rocm, taken, dtype) -> None:
    """Blocks share them, where rows of weights and of activations end anywhere."""
    for rows, n in ((33, 40), (100, 17), (64, 5)):
        x, w, bias = numbers(dtype, rows, 160), numbers(dtype, n, 160), numbers(dtype, n)
        judge(ops.linear(*(Tensor.from_numpy(each, rocm) for each in (x, w, bias))), x, w, bias)
    assert taken == [6, 8, 2]


def test_more_rows_of_many_weights_are_for_tiles(rocm, taken) -> None:
    """Of up to 16 rows any weights are taken, of more those that tiles would share badly."""
    n = 4 * 16 * rocm.compute_units + 1
    x, w = numbers(dtypes.f16, 17, 64), numbers(dtypes.f16, n, 64)
    given, of = (Tensor.from_numpy(each, rocm) for each in (x, w))
    assert few._takes(given, of) == f"17 rows by {n} of weights are for tiles"
    assert few._takes(given, of.narrow(0, 0, n - 1)) is None
    assert few._takes(given.narrow(0, 0, 16), of) is None
    judge(ops.linear(given, of), x, w)
    assert taken == []


@pytest.mark.parametrize(
    ("x", "w", "reason"),
    [
        ((0, 64), (5, 64), "0 rows are for other kernels (it takes 1 to 32, of f8 any)"),
        ((33, 64), (5, 64), "33 rows are for other kernels (it takes 1 to 32, of f8 any)"),
        ((2, 48), (5, 48), "sums have 48 terms: it takes multiples of 32"),
        ((2, 0), (5, 0), "sums have 0 terms: it takes multiples of 32"),
    ],
)
def test_what_is_for_others(rocm, taken, x, w, reason) -> None:
    """Is said, and done by others."""
    given = [Tensor.from_numpy(numbers(dtypes.f16, *shape), rocm) for shape in (x, w)]
    assert few._takes(*given) == reason
    judge(ops.linear(*given), *(each.numpy() for each in given))
    assert taken == []


def test_rows_that_lie_elsewhere_are_for_others(rocm, taken) -> None:
    """Rows of either operand that begin where no pack can be loaded, or are apart."""
    x, w = numbers(dtypes.f16, 4, 128), numbers(dtypes.f16, 9, 128)
    whole, of = Tensor.from_numpy(x, rocm), Tensor.from_numpy(w, rocm)
    apart = whole.narrow(1, 0, 64)
    assert "rows of x do not follow each other" in (few._takes(apart, of.narrow(1, 0, 64)) or "")
    later = of.narrow(1, 4, 64)
    assert "no whole packs" in (few._takes(apart.contiguous(), later) or "")
    judge(ops.linear(apart, later), x[:, :64], w[:, 4:68])
    assert taken == []
