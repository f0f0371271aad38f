"""Products of one row, or of the norm of a sum, with weights of its dtype: by one kernel each."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels import ops_matmul_one
from propolis_rocm_kernels import ops_normed
from propolis_rocm_kernels import ops_quantized_matmul_one
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels.ops_matmul_matrix import MATRIX
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions


TYPES = [dtypes.f32, dtypes.f16, dtypes.bf16]
LOST = {dtypes.f32: 2.0**-20, dtypes.f16: 2.0**-10, dtypes.bf16: 2.0**-7}
"""Of the terms of a result, where a norm was rounded before them and the result after."""


@pytest.fixture(scope="module", params=["fast", "exact"])
def runtime(request):
    """Nothing is rounded that others do not round: whatever the numerics."""
    plugins = ["rocm_hip", "rocm_kernels"]
    return Runtime.start(Config(fallback="error", plugins=plugins, numerics=request.param))


@pytest.fixture
def rows(rocm):
    """Makes random tensors of a dtype, and the same in f64."""
    rng = np.random.default_rng(7)

    def make(dtype, *shape, scale=1.0):
        array = rng.normal(0, scale, shape).astype(dtype.numpy)
        return Tensor.from_numpy(array, rocm), array.astype(np.float64)

    return make


@pytest.fixture(autouse=True)
def taken(counting):
    """The blocks of each launch of the kernels that this file is about."""
    each = [counting(k) for k in (ops_matmul_one._KERNELS, ops_normed._NORMED, ops_normed._TURNED)]
    return lambda: [len(found) for found in each]


def normed(x, y, weight, dtype):
    """The sum as its dtype has it, and the norm of that."""
    total = (x + y).astype(dtype.numpy).astype(np.float64)
    return total, total / np.sqrt((total**2).mean() + 1e-5) * weight


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n", "depth"), [(1, 8), (37, 576), (70, 2304), (300, 4104)])
def test_linear(rocm, rows, taken, dtype, n, depth, biased) -> None:
    """One row times weights whose rows end anywhere among the chunks of lanes, and a bias.

    On matrix instructions whole spans of depth are for those of few (test_few_plain_rows.py).
    """
    (x, a), (w, b), (bias, c) = rows(dtype, 1, depth), rows(dtype, n, depth), rows(dtype, n)
    out = ops.linear(x, w, bias if biased else None).numpy().astype(np.float64)
    expected = a @ b.T + (c if biased else 0)
    few = dtype in MATRIX and not depth % 32 and has_instructions(rocm.properties.arch, dtype)
    assert taken() == [int(not few), 0, 0]
    allowed = LOST[dtype] * np.abs(expected) + 2.0**-20 * (np.abs(a) @ np.abs(b).T)
    assert (np.abs(out - expected) <= allowed).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("n", "depth"), [(2, 64), (74, 576), (70, 2304), (300, 9216)])
def test_products_of_a_norm(rows, taken, dtype, n, depth, gated) -> None:
    """A row is summed, normed, multiplied and gated; rows beyond what threads hold too."""
    (x, a), (y, b), (weight, c) = rows(dtype, 1, depth), rows(dtype, 1, depth), rows(dtype, depth)
    w, matrix = rows(dtype, n, depth, scale=depth**-0.5)
    total, out = ops.add_rms_norm_linear(x, y, weight, w, 1e-5, gated=gated)
    sums, row = normed(a, b, c, dtype)
    np.testing.assert_array_equal(total.numpy().astype(np.float64), sums)
    product, terms = row @ matrix.T, np.abs(row) @ np.abs(matrix).T
    if gated:
        (gate, up), each = np.split(product, 2, -1), np.split(terms, 2, -1)
        product = gate / (1 + np.exp(-gate)) * up
        terms = 1.1 * each[0] * np.abs(up) + np.abs(gate) * each[1]
    assert (np.abs(out.numpy() - product) <= 2 * LOST[dtype] * terms).all()
    assert taken() == [0, 1, 0]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "pairs", "depth"), [(64, 32, 576), (80, 20, 2304), (6, 3, 64)])
def test_heads_of_a_norm(rocm, rows, taken, dtype, dim, pairs, depth, interleaved) -> None:
    """Heads are made and rotated, whole or in part; those of values are not."""
    (x, a), (y, b) = rows(dtype, 1, 1, depth), rows(dtype, 1, 1, depth)
    (weight, c), (w, matrix) = rows(dtype, depth), rows(dtype, 3 * dim, depth, scale=0.1)
    angles = np.random.default_rng(3).uniform(0, 6, (9, pairs))
    cos, sin = (Tensor.from_numpy(f(angles).astype(np.float32), rocm) for f in (np.cos, np.sin))
    at = Tensor.from_numpy(np.array([[5]], np.int32), rocm)
    rules = {"heads": 2, "head_dim": dim, "interleaved": interleaved}
    _, out = ops.add_rms_norm_linear_rope(x, y, weight, w, at, cos, sin, 1e-5, **rules)
    _, row = normed(a, b, c, dtype)
    expected = (row.reshape(-1) @ matrix.T).reshape(3, dim)
    first = np.arange(pairs) * (2 if interleaved else 1)
    second = first + (1 if interleaved else pairs)
    both = (expected[:2, first] + 1j * expected[:2, second]) * np.exp(1j * angles[5])
    expected[:2, first], expected[:2, second] = both.real, both.imag
    terms = (np.abs(row.reshape(-1)) @ np.abs(matrix).T).max()
    np.testing.assert_allclose(out.numpy().reshape(3, dim), expected, atol=2 * LOST[dtype] * terms)
    assert taken() == [0, 0, 1]


@pytest.mark.parametrize(
    ("dtype", "kept"), [*((d, d) for d in TYPES), *((dtypes.f32, d) for d in TYPES[1:])], ids=str
)
def test_keys_and_values_are_kept(rocm, rows, taken, dtype, kept) -> None:
    """What is rotated and not kept otherwise lies in the token's slot, and nothing elsewhere."""
    (x, _), (y, _), (weight, _) = rows(dtype, 1, 1, 576), rows(dtype, 1, 1, 576), rows(dtype, 576)
    w, _ = rows(dtype, 7 * 16, 576, scale=0.05)
    (cos, _), (sin, _) = rows(dtypes.f32, 9, 8), rows(dtypes.f32, 9, 8)
    at, slots = (Tensor.from_numpy(np.array([[n]], np.int32), rocm) for n in (8, 3))
    given, tables = (x, y, weight, w), (at, cos, sin)
    _, whole = ops.add_rms_norm_linear_rope(*given, *tables, heads=5, head_dim=16)
    expected = whole.numpy().reshape(7, 16)
    cache = Tensor.from_numpy(np.full((1, 4, 5, 16), 7, kept.numpy), rocm).permute(0, 2, 1, 3)
    _, q = ops.add_rms_norm_linear_rope_kv_append(cache, *given, slots, *tables, heads=3)
    np.testing.assert_array_equal(q.numpy()[0, 0], expected[:3])
    found = cache.contiguous().numpy()
    np.testing.assert_array_equal(found[0, 3], expected[3:].astype(kept.numpy))
    assert (found[0, [0, 1, 2, 4]] == 7).all()
    assert taken() == [0, 0, 2]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_more_rows_than_blocks(rocm, rows, taken, monkeypatch, dtype, gated) -> None:
    """Blocks that have the row go on to further rows of weights."""
    monkeypatch.setattr(ops_quantized_matmul_one, "THREADS", BLOCK)
    monkeypatch.setattr(ops_quantized_matmul_one, "_SHALLOW", 0)
    n = 40 * rocm.compute_units + 2
    (x, a), (y, b), (weight, c) = rows(dtype, 1, 520), rows(dtype, 1, 520), rows(dtype, 520)
    w, matrix = rows(dtype, n, 520, scale=0.05)
    _, out = ops.add_rms_norm_linear(x, y, weight, w, 1e-5, gated=gated)
    _, row = normed(a, b, c, dtype)
    product = row @ matrix.T
    if gated:
        gate, up = np.split(product, 2, -1)
        product = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(out.numpy(), product, rtol=0.05, atol=0.05)
    plain = ops.linear(x, w).numpy()
    np.testing.assert_allclose(plain, a @ matrix.T, rtol=0.05, atol=0.05)
    assert taken() == [1, 1, 0]


def test_what_is_not_finite(rocm, rows) -> None:
    """A weight that is infinite, or NaN, is its row's alone; zeros behind a row meet no weight."""
    (x, _), (w, _) = rows(dtypes.f16, 1, 72), rows(dtypes.f16, 3, 72)
    array = w.numpy()
    array[0, 0], array[1, 71] = np.inf, np.nan
    out = ops.linear(x, Tensor.from_numpy(array, rocm)).numpy()[0]
    assert np.isinf(out[0])
    assert np.isnan(out[1])
    assert np.isfinite(out[2])


def test_who_multiplies(rocm, rows) -> None:
    """More rows, weights of no whole packs, rows of no room: for others, who are right."""
    (x, a), (w, b) = rows(dtypes.f16, 2, 72), rows(dtypes.f16, 4, 72)
    (linear,) = ops_matmul_one.OPS
    norm, heads, keeps = ops_normed.OPS
    one = x.narrow(0, 0, 1)
    assert linear.supports(one, w) is None
    assert "takes one row" in linear.supports(x, w)
    assert "whole packs" in linear.supports(one.narrow(1, 0, 68), w.narrow(1, 0, 68))
    np.testing.assert_allclose(ops.linear(x, w).numpy(), a @ b.T, rtol=0.01, atol=0.02)
    some = ops.linear(one.narrow(1, 0, 68), w.narrow(1, 0, 68)).numpy()
    np.testing.assert_allclose(some, a[:1, :68] @ b[:, :68].T, rtol=0.01, atol=0.02)
    assert "bytes of LDS" in linear.supports(*(rows(dtypes.f16, 1, 1 << 17)[0] for _ in range(2)))
    fits = rocm.hardware.shared_bytes // 2
    assert linear.supports(*(rows(dtypes.f16, 1, fits)[0] for _ in range(2))) is None
    weight, _ = rows(dtypes.f16, 72)
    assert "takes one row" in norm.supports(x, x, weight, w)
    at = Tensor.from_numpy(np.zeros((1, 1), np.int32), rocm)
    table = Tensor.from_numpy(np.ones((1, 1), np.float32), rocm)
    given = (one.unsqueeze(0), one.unsqueeze(0), weight, w.narrow(0, 0, 3), at, table, table)
    assert "not made of pairs" in heads.supports(*given, heads=1, head_dim=3)
    cache = Tensor.from_numpy(np.zeros((1, 2, 2, 1), np.float16), rocm)
    assert "not made of pairs" in keeps.supports(cache, *given[:4], at, *given[4:], heads=1)
