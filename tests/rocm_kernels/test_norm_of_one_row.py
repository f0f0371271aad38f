"""Products of one row's norm with blocks, whose heads may be rotated and kept on the way."""

from __future__ import annotations

import numpy as np
import pytest
from rounding import judge_rounded_row

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis_rocm_kernels import ops_normed_quantized
from propolis_rocm_kernels import ops_normed_quantized_rope
from propolis_rocm_kernels import ops_quantized_matmul_one
from propolis_rocm_kernels._constants import BLOCK


FORMATS = sorted(dtypes.BLOCKS, key=str)


@pytest.fixture(scope="module")
def runtime():
    """Where numbers may be rounded on the way; see conftest.py."""
    return Runtime.start(Config(fallback="error", plugins=["rocm_hip", "rocm_kernels"]))


@pytest.fixture
def taken(counting):
    """The blocks of each launch for one row."""
    return counting(ops_quantized_matmul_one._KERNELS)


@pytest.fixture
def normed(counting):
    """The blocks of each launch that norms the row, too."""
    return counting(ops_normed_quantized._KERNELS)


@pytest.fixture
def turned(counting):
    """The blocks of each launch that rotates the product, too."""
    return counting(ops_normed_quantized_rope._KERNELS)


# -- of the norm of a sum ----------------------------------------------------------------


def product_of_norm(device, dtype, rows, depth, *, gated):
    """The op's results, and in f64 the sum, what its norm is, and the values of the blocks."""
    rng = np.random.default_rng([rows, depth])
    x, y, weight = rng.normal(size=(3, depth)).astype(np.float32)
    numbers = rng.normal(0, 0.1, size=(rows, depth)).astype(np.float32)
    w = ops.quantize(Tensor.from_numpy(numbers, device), dtype)
    given = (Tensor.from_numpy(a, device) for a in (x[None], y[None], weight))
    outs = ops.add_rms_norm_qmatmul(*given, w, 1e-5, gated=gated)
    total = (x + y).astype(np.float64)
    normed = total / np.sqrt((total**2).mean() + 1e-5) * weight
    blocks = ops.dequantize(w).numpy().astype(np.float64)
    return *(out.numpy()[0] for out in outs), total, normed, blocks


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("rows", "depth"), [(1, 256), (37, 768), (70, 2304)])
def test_products_of_a_norm(rocm, taken, normed, dtype, rows, depth) -> None:
    """A row is summed, normed and multiplied by one kernel, as exact as one row of qmatmul."""
    total, out, sums, row, w = product_of_norm(rocm, dtype, rows, depth, gated=False)
    np.testing.assert_array_equal(total, sums)
    judge_rounded_row(out, row.astype(np.float32), w)
    assert (len(taken), len(normed)) == (0, 1)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("rows", "depth"), [(2, 256), (74, 2304)])
def test_gated_products_of_a_norm(rocm, taken, normed, dtype, rows, depth) -> None:
    """The halves of the product are gated before they are written: as silu_mul of the product."""
    total, out, sums, row, w = product_of_norm(rocm, dtype, rows, depth, gated=True)
    np.testing.assert_array_equal(total, sums)
    gate, up = np.split(w @ row, 2)
    largest = np.split(np.abs(w) @ np.abs(row), 2)
    allowed = 2.0**-13 * (1.1 * largest[0] * np.abs(up) + np.abs(gate) * largest[1]) + 1e-6
    assert (np.abs(out - gate / (1 + np.exp(-gate)) * up) <= allowed).all()
    assert (len(taken), len(normed)) == (0, 1)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("depth", [4608, 9216])
def test_long_rows_and_many(rocm, monkeypatch, taken, normed, depth, gated) -> None:
    """Rows beyond what threads hold are read again; blocks go on to further rows of weights."""
    monkeypatch.setattr(ops_quantized_matmul_one, "THREADS", BLOCK)
    monkeypatch.setattr(ops_quantized_matmul_one, "_SHALLOW", 0)
    rows = 40 * rocm.compute_units + 2
    total, out, sums, row, w = product_of_norm(rocm, dtypes.q4_k, rows, depth, gated=gated)
    np.testing.assert_array_equal(total, sums)
    product = w @ row
    if gated:
        gate, up = np.split(product, 2)
        product = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(out, product, rtol=1e-3, atol=2e-3)
    assert (taken, normed) == ([], [rocm.compute_units])


def test_who_multiplies_a_norm(rocm) -> None:
    """More rows, exact numerics, and no rows of weights at all are for others."""
    (impl,) = ops_normed_quantized.OPS
    x, one = (Tensor.from_numpy(np.ones(s, np.float32), rocm) for s in ((2, 64), 64))
    w = ops.quantize(Tensor.from_numpy(np.ones((4, 64), np.float32), rocm), dtypes.q8_0)
    assert "takes one row" in impl.supports(x, x, one, w)
    assert "no rows of weights" in impl.supports(one, one, one, w.narrow(0, 0, 0))
    assert impl.supports(one, one, one, w) is None
    total, out = ops.add_rms_norm_qmatmul(x, x, one, w)
    assert (total.numpy() == 2).all()
    np.testing.assert_allclose(out.numpy(), 64, rtol=1e-3)
    exact = Runtime.start(Config(plugins=["rocm_hip", "rocm_kernels"], numerics="exact"))
    table = DispatchTable.of(exact.device(rocm.id))
    key = ops.add_rms_norm_qmatmul.key(dtypes.f32, dtypes.q8_0)
    trace = table.trace(ops.add_rms_norm_qmatmul, key)
    assert trace.winner is None
    assert trace.is_decomposed


# -- of which heads are rotated ----------------------------------------------------------


def heads_of_norm(device, dtype, heads, depth, pairs, position, **options):
    """
    The op's results, and in f64 what they are of numbers that are not rounded, and their terms.

    Two of so many heads are rotated, by that position of nine.
    """
    dim = options["head_dim"]
    rng = np.random.default_rng([heads, depth, pairs])
    x, y, weight = rng.normal(size=(3, depth)).astype(np.float32)
    w = ops.quantize(
        Tensor.from_numpy(rng.normal(0, 0.1, (heads * dim, depth)).astype(np.float32), device),
        dtype,
    )
    angles = rng.uniform(0, 6, (9, pairs))
    tables = [f(angles).astype(np.float32) for f in (np.cos, np.sin)]
    given = (Tensor.from_numpy(a, device) for a in (x[None, None], y[None, None], weight))
    at = Tensor.from_numpy(np.array([[position]], np.int32), device)
    cos, sin = (Tensor.from_numpy(table, device) for table in tables)
    _, out = ops.add_rms_norm_qmatmul_rope(*given, w, at, cos, sin, 1e-5, heads=2, **options)
    total = (x + y).astype(np.float64)
    normed = total / np.sqrt((total**2).mean() + 1e-5) * weight
    blocks = ops.dequantize(w).numpy().astype(np.float64)
    expected = (blocks @ normed).reshape(heads, dim)
    first = np.arange(pairs) * (2 if options.get("interleaved") else 1)
    second = first + (1 if options.get("interleaved") else pairs)
    turns = np.exp(1j * angles[position % 9])
    both = (expected[:2, first] + 1j * expected[:2, second]) * turns
    expected[:2, first], expected[:2, second] = both.real, both.imag
    terms = np.abs(blocks) @ np.abs(normed)
    return out.numpy().reshape(heads, dim), expected, terms.max()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "pairs"), [(64, 32), (80, 20), (6, 3)])
def test_heads_of_a_norm(rocm, turned, normed, dtype, dim, pairs, interleaved) -> None:
    """Heads are made and rotated, whole or in part, by one kernel; those of values are not."""
    options = {"head_dim": dim, "interleaved": interleaved}
    out, expected, terms = heads_of_norm(rocm, dtype, 3, 768, pairs, 5, **options)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2.0**-13 * terms)
    assert (len(normed), len(turned)) == (0, 1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("depth", [256, 4608])
def test_more_heads_than_blocks(rocm, monkeypatch, turned, depth, interleaved) -> None:
    """Blocks go on to further pairs of rows, each with an angle of its own."""
    monkeypatch.setattr(ops_quantized_matmul_one, "THREADS", BLOCK)
    monkeypatch.setattr(ops_quantized_matmul_one, "_SHALLOW", 0)
    heads = rocm.compute_units + 3
    options = {"head_dim": 64, "interleaved": interleaved}
    out, expected, terms = heads_of_norm(rocm, dtypes.q4_k, heads, depth, 32, 8, **options)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2.0**-13 * terms)
    assert turned == [rocm.compute_units]


@pytest.mark.parametrize("position", [-1, 9, 1 << 30])
def test_a_position_of_no_angle(rocm, turned, position) -> None:
    """What would be rotated by an angle outside the tables is zeros; values are as they were."""
    out, expected, terms = heads_of_norm(rocm, dtypes.q8_0, 3, 256, 16, position, head_dim=64)
    assert not out[:2].reshape(2, 2, 32)[:, 0].any()
    np.testing.assert_allclose(out[2], expected[2], rtol=0, atol=2.0**-13 * terms)
    assert len(turned) == 1


def test_values_beside_infinities(rocm) -> None:
    """A value's neighbour is not multiplied with it: what is infinite stays alone."""
    w = np.zeros((4, 64), np.float32)
    w[3] = 60000  # times 64 numbers of 1e35: an infinity
    x, one = np.ones((1, 1, 64), np.float32), np.ones(64, np.float32)
    given = (Tensor.from_numpy(a, rocm) for a in (x, np.zeros_like(x), one * np.float32(1e35)))
    blocks = ops.quantize(Tensor.from_numpy(w, rocm), dtypes.q8_0)
    at = Tensor.from_numpy(np.zeros((1, 1), np.int32), rocm)
    cos = Tensor.from_numpy(np.ones((1, 1), np.float32), rocm)
    rules = {"heads": 1, "head_dim": 2}
    _, out = ops.add_rms_norm_qmatmul_rope(*given, blocks, at, cos, cos, 1e-5, **rules)
    np.testing.assert_array_equal(out.numpy()[0, 0], [0, 0, 0, np.inf])


def test_who_rotates_a_product(rocm) -> None:
    """Heads of an odd number of elements, and tables that lie across, are for others, and right."""
    impl, _ = ops_normed_quantized_rope.OPS
    rng = np.random.default_rng(0)
    x = Tensor.from_numpy(rng.normal(size=(1, 1, 64)).astype(np.float32), rocm)
    one = Tensor.from_numpy(np.ones(64, np.float32), rocm)
    w = Tensor.from_numpy(rng.normal(size=(6, 64)).astype(np.float32), rocm)
    w = ops.quantize(w, dtypes.q8_0)
    at = Tensor.from_numpy(np.zeros((1, 1), np.int32), rocm)
    table = Tensor.from_numpy(np.full((3, 2), 0.5, np.float32), rocm)
    plain = ops.add_rms_norm_qmatmul(x, x, one, w)[1].numpy()[0, 0]
    for tables, dim, why in (
        (table.narrow(1, 0, 1), 3, "not made of pairs"),
        (table.narrow(0, 0, 2).permute(1, 0), 6, "side by side"),
    ):
        given, rules = (x, x, one, w, at, tables, tables), {"heads": 1, "head_dim": dim}
        assert why in impl.supports(*given, **rules)
        out = ops.add_rms_norm_qmatmul_rope(*given, **rules)[1].numpy()[0, 0]
        pairs = tables.shape[1]
        a, b = plain[:pairs], plain[pairs : 2 * pairs]
        expected = np.concatenate([(a - b) / 2, (a + b) / 2, plain[2 * pairs :]])
        np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)


# -- and keys and values are kept --------------------------------------------------------


@pytest.mark.parametrize("stored", [dtypes.q4_k, dtypes.q8_0, dtypes.mxfp4], ids=str)
@pytest.mark.parametrize("kept", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_and_values_are_kept(rocm, turned, stored, kept, interleaved) -> None:
    """What is rotated and not kept otherwise lies in the slot, of strided heads; no more."""
    rng = np.random.default_rng(8)
    x, y, weight = (
        Tensor.from_numpy(rng.normal(size=shape).astype(np.float32), rocm)
        for shape in ((1, 1, 512), (1, 1, 512), (512,))
    )
    w = Tensor.from_numpy(rng.normal(0, 0.1, (7 * 32, 512)).astype(np.float32), rocm)
    w = ops.quantize(w, stored)
    tables = [Tensor.from_numpy(rng.normal(size=(9, 12)).astype(np.float32), rocm) for _ in "cs"]
    at, slots = (Tensor.from_numpy(np.array([[n]], np.int32), rocm) for n in (8, 3))
    rules = {"interleaved": interleaved}
    given = (x, y, weight, w)
    _, whole = ops.add_rms_norm_qmatmul_rope(*given, at, *tables, heads=5, head_dim=32, **rules)
    expected = whole.numpy().reshape(7, 32)
    cache = Tensor.from_numpy(np.full((1, 4, 5, 32), 7, kept.numpy), rocm).permute(0, 2, 1, 3)
    op = ops.add_rms_norm_qmatmul_rope_kv_append
    total, q = op(cache, *given, slots, at, *tables, heads=3, **rules)
    np.testing.assert_array_equal(total.numpy(), x.numpy() + y.numpy())
    np.testing.assert_array_equal(q.numpy()[0, 0], expected[:3])
    found = cache.contiguous().numpy().astype(np.float32)
    np.testing.assert_array_equal(found[0, 3], expected[3:].astype(kept.numpy).astype(np.float32))
    assert (found[0, [0, 1, 2, 4]] == 7).all()
    assert len(turned) == 2


@pytest.mark.parametrize("slot", [-1, 5, 1 << 30])
def test_a_slot_outside_the_cache(rocm, turned, slot) -> None:
    """Nothing is written there; queries are what they were."""
    one = Tensor.from_numpy(np.ones((1, 1, 64), np.float32), rocm)
    weight = Tensor.from_numpy(np.ones(64, np.float32), rocm)
    w = ops.quantize(Tensor.from_numpy(np.ones((6, 64), np.float32), rocm), dtypes.q8_0)
    tables = [Tensor.from_numpy(np.ones((2, 0), np.float32), rocm) for _ in "cs"]
    at, slots = (Tensor.from_numpy(np.array([[n]], np.int32), rocm) for n in (0, slot))
    whole = Tensor.from_numpy(np.full((1, 7, 2, 2), 7, np.float32), rocm)
    cache = whole.narrow(1, 1, 5)
    op = ops.add_rms_norm_qmatmul_rope_kv_append
    _, q = op(cache, one, one, weight, w, slots, at, *tables, heads=1)
    np.testing.assert_allclose(q.numpy(), 64, rtol=1e-3)
    assert (whole.numpy() == 7).all()
    assert len(turned) == 1


def test_who_keeps_heads(rocm, turned) -> None:
    """Elements that lie apart in the cache are for others, and right."""
    _, impl = ops_normed_quantized_rope.OPS
    one = Tensor.from_numpy(np.ones((1, 1, 64), np.float32), rocm)
    weight = Tensor.from_numpy(np.ones(64, np.float32), rocm)
    w = ops.quantize(Tensor.from_numpy(np.ones((6, 64), np.float32), rocm), dtypes.q8_0)
    tables = [Tensor.from_numpy(np.ones((2, 0), np.float32), rocm) for _ in "cs"]
    at = Tensor.from_numpy(np.zeros((1, 1), np.int32), rocm)
    cache = Tensor.from_numpy(np.zeros((1, 2, 2, 3), np.float32), rocm).permute(0, 3, 1, 2)
    given = (cache, one, one, weight, w, at, at, *tables)
    assert "side by side in the cache" in impl.supports(*given, heads=1)
    _, q = ops.add_rms_norm_qmatmul_rope_kv_append(*given, heads=1)
    np.testing.assert_allclose(q.numpy(), 64, rtol=1e-3)
    kept = cache.contiguous().numpy()
    np.testing.assert_allclose(kept[0, 0], 64, rtol=1e-3)
    assert not kept[0, 1:].any()
    assert not turned
