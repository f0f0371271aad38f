"""Products on a device, against f64 products of the same numbers by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from rounding import judge_sums
from rounding import normal

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels._product import lanes_for
from propolis_rocm_kernels._product import plan


def judge(actual, a, b, dtype, bias=0.0):
    """As sums of products, and a bias, are judged."""
    a, b, bias = (np.asarray(x).astype(np.float64) for x in (a, b, bias))
    terms = np.abs(a) @ np.abs(b) + np.abs(bias)
    judge_sums(actual, a @ b + bias, terms, dtype)


@pytest.mark.parametrize("dtype", sorted(dtypes.FLOATS, key=str), ids=str)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 8, 9, 65])
@pytest.mark.parametrize("depth", [8, 40, 264, 135])
def test_linear(rocm, dtype, m, depth) -> None:
    """Few rows and many, of rows that are whole packs and that are not, with bias and without."""
    x, w, bias = (
        normal(dtype, m, depth),
        normal(dtype, 71, depth, seed=1),
        normal(dtype, 71, seed=2),
    )
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, bias)]
    judge(ops.linear(*given).numpy(), x, w.T, dtype, bias)
    judge(ops.linear(*given[:2]).numpy(), x, w.T, dtype)


@pytest.mark.parametrize("m", [1, 4, 7, 65])
@pytest.mark.parametrize("depth", [0, 40, 135])
def test_whole_numbers(rocm, m, depth) -> None:
    """Products of i8 are i32 and those of numpy, whatever kernel and layout, and wrap around."""
    rng = np.random.default_rng([m, depth])
    x, w = (rng.integers(-128, 127, (n, depth), np.int8, endpoint=True) for n in (m, 71))
    bias = rng.integers(-(2**31), 2**31, 71, np.int32)
    expected = x.astype(np.int32) @ w.astype(np.int32).T
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, bias)]
    assert (expected + bias == ops.linear(*given).numpy()).all()
    columns = given[1].transpose(0, 1)
    assert (expected == ops.matmul(given[0], columns).numpy()).all()
    both = (given[0].transpose(0, 1).contiguous().transpose(0, 1), columns.contiguous())
    assert (expected == ops.matmul(*both).numpy()).all()


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_large_tiles(rocm, dtype) -> None:
    """Where there are tiles of 128 for every compute unit these are taken, edges included."""
    side = 128 * max(2, int(rocm.compute_units**0.5) + 1) - 3
    a, b = normal(dtype, side, 37), normal(dtype, 37, side, seed=1)
    given = [Tensor.from_numpy(x, rocm) for x in (a, b)]
    judge(ops.matmul(*given).numpy(), a, b, dtype)


LAYOUTS = {
    "rows": lambda t: t,
    "columns": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "a slice": lambda t: t.narrow(len(t.shape) - 1, 1, t.shape[-1] - 8),
}


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
@pytest.mark.parametrize("batches", [((), ()), ((3,), ()), ((3,), (3,)), ((2, 1), (3,))], ids=str)
@pytest.mark.parametrize("m", [1, 5, 70])
def test_layouts_and_batches(rocm, a_layout, b_layout, batches, m) -> None:
    """Row-major, column-major and sliced operands; batches of both, of one, and broadcast."""
    dtype, k, n = dtypes.f16, 80, 72
    a = Tensor.from_numpy(normal(dtype, *batches[0], m, k), rocm)
    b = Tensor.from_numpy(normal(dtype, *batches[1], k, n, seed=1), rocm)
    a, b = LAYOUTS[a_layout](a), LAYOUTS[b_layout](b)
    k = min(a.shape[-1], b.shape[-2])
    a, b = a.narrow(len(a.shape) - 1, 0, k), b.narrow(len(b.shape) - 2, 0, k)
    judge(ops.matmul(a, b).numpy(), a.numpy(), b.numpy(), dtype)


def test_nothing_to_add(rocm) -> None:
    """A product over no elements is zero, and the bias where there is one."""
    x, w = np.zeros((3, 0), np.float32), np.zeros((5, 0), np.float32)
    bias = normal(dtypes.f32, 5)
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, bias)]
    assert (np.broadcast_to(bias, (3, 5)) == ops.linear(*given).numpy()).all()
    assert (np.zeros((3, 5)) == ops.linear(*given[:2]).numpy()).all()


def test_infinities_stay_where_they_belong(rocm) -> None:
    """What tiles are filled up with touches no result: an infinity reaches its row alone."""
    for m in (2, 70):
        a, b = normal(dtypes.f32, m, 19), normal(dtypes.f32, 19, 70, seed=1)
        a[1, 18] = np.inf
        with np.errstate(invalid="ignore"):
            expected = a.astype(np.float64) @ b
        actual = ops.matmul(Tensor.from_numpy(a, rocm), Tensor.from_numpy(b, rocm)).numpy()
        assert (np.isinf(expected) == np.isinf(actual)).all()
        assert not np.isnan(actual).any()


def test_leading_dimensions_become_rows() -> None:
    """Rows that share a matrix are one product, however many dimensions they had."""
    assert (24, 16) == plan((2, 3, 4), (192, 64, 16), (0, 0, 0))[:2]
    folded = plan((2, 3, 4), (192, 64, 16), (80, 0, 0))
    assert (12, 16, 2) == (folded.m, folded.row, folded.batches.numel)
    apart = plan((2, 1), (16, 16), (80, 0))
    assert (1, 0, 2) == (apart.m, apart.row, apart.batches.numel)


def test_lanes_of_a_row() -> None:
    """Few rows get whole warps; where rows are many, as many lanes as do not idle."""
    assert 64 == lanes_for(576, 576, 64, 60)
    assert 16 == lanes_for(576, 49152, 64, 60)
    assert 64 == lanes_for(4096, 128256, 64, 304)
    assert 8 == lanes_for(8, 10**6, 32, 60)


CHOICES = {
    "all with one expert": lambda _, shape: np.full(shape, 3),
    "any": lambda rng, shape: rng.integers(0, 9, shape),
    "none with most": lambda rng, shape: rng.choice([0, 8], shape),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("tokens", [1, 4, 17, 90])
@pytest.mark.parametrize("depth", [40, 37])
def test_experts(rocm, choice, tokens, depth) -> None:
    """Each token with its experts' weights, one input for all of them or one for each."""
    rng = np.random.default_rng([tokens, depth])
    w, chosen = normal(dtypes.f16, 9, 67, depth), CHOICES[choice](rng, (tokens, 2))
    experts = Tensor.from_numpy(chosen, rocm)
    for inputs in (1, 2):
        x = normal(dtypes.f16, tokens, inputs, depth, seed=1)
        given = Tensor.from_numpy(x, rocm), Tensor.from_numpy(w, rocm)
        actual = ops.moe_linear(*given, experts).numpy()
        rows = np.broadcast_to(x, (tokens, 2, depth)).reshape(-1, 1, depth)
        weights = w[chosen.reshape(-1)].transpose(0, 2, 1)
        judge(actual.reshape(-1, 1, 67), rows, weights, dtypes.f16)


def test_experts_of_another_layout(rocm) -> None:
    """Weights of experts whose columns lie side by side, and every other token."""
    w, x = normal(dtypes.f32, 5, 48, 40), normal(dtypes.f32, 14, 3, 48, seed=1)
    chosen = np.random.default_rng(0).integers(0, 5, (14, 3))
    weights = Tensor.from_numpy(w, rocm).transpose(1, 2)
    actual = ops.moe_linear(Tensor.from_numpy(x, rocm), weights, Tensor.from_numpy(chosen, rocm))
    rows = x.reshape(-1, 1, 48)
    judge(actual.numpy().reshape(-1, 1, 40), rows, w[chosen.reshape(-1)], dtypes.f32)


def test_experts_in_parts(rocm, monkeypatch) -> None:
    """More pairs than are put in order at a time are done in several turns."""
    monkeypatch.setattr("propolis_rocm_kernels._experts._PAIRS", 31)
    w, x = normal(dtypes.f32, 5, 20, 40), normal(dtypes.f32, 50, 1, 40, seed=1)
    chosen = np.random.default_rng(0).integers(0, 5, (50, 3))
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, chosen)]
    rows = np.broadcast_to(x, (50, 3, 40)).reshape(-1, 1, 40)
    actual = ops.moe_linear(*given).numpy().reshape(-1, 1, 20)
    judge(actual, rows, w[chosen.reshape(-1)].transpose(0, 2, 1), dtypes.f32)


def test_gate_of_many_experts(rocm) -> None:
    """More experts than a warp has threads, and more chosen; of equal ones the first."""
    logits = np.random.default_rng(0).integers(-9, 9, (5, 160)).astype(np.float32)
    weights, experts = ops.moe_gate(Tensor.from_numpy(logits, rocm), 70)
    expected = np.argsort(-logits, axis=-1, kind="stable")[:, :70]
    assert (expected == experts.numpy()).all()
    shares = np.exp(np.take_along_axis(logits, expected, -1).astype(np.float64))
    np.testing.assert_allclose(weights.numpy(), shares / shares.sum(-1, keepdims=True), rtol=1e-5)


def test_replayed_experts(rocm) -> None:
    """A captured step follows what its tokens choose when it is replayed."""
    w, x = normal(dtypes.f32, 5, 20, 40), normal(dtypes.f32, 30, 1, 40, seed=1)
    rows = np.broadcast_to(x, (30, 2, 40)).reshape(-1, 1, 40)
    chosen = np.zeros((30, 2), np.int64)
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, chosen)]
    with capture(rocm) as graph:
        y = ops.moe_linear(*given)
    for seed in range(2):
        chosen = np.random.default_rng(seed).integers(0, 5, (30, 2))
        given[2].assign(chosen)
        graph.replay()
        judge(y.numpy().reshape(-1, 1, 20), rows, w[chosen.reshape(-1)].transpose(0, 2, 1), y.dtype)
