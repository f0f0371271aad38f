"""Mixtures of experts against loops over tokens in f64."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError
from propolis.opspec.spec import DEFAULT_TOLERANCE


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
BLOCKS = [d for d in dtypes.ALL if d.is_block]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)


def gate(logits, k, *, renormalize):
    """The softmax of each row in f64, and its k largest, first of equals first."""
    wide = logits.astype(np.float64)
    shares = np.exp(wide - wide.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    order = [sorted(range(len(row)), key=lambda i, r=row: (-r[i], i))[:k] for row in wide]
    experts = np.array(order, np.int64).reshape(len(wide), k)
    weights = np.take_along_axis(shares, experts, 1)
    return (weights / weights.sum(axis=1, keepdims=True) if renormalize else weights), experts


def moe_linear(x, w, experts):
    """Each token times the weights of each of its experts, in f64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    result = np.zeros((*experts.shape, w.shape[1]))
    for t, j in np.ndindex(*experts.shape):
        result[t, j] = w[experts[t, j]] @ x[t, j if x.shape[1] > 1 else 0]
    return result


def tensors(*arrays):
    """Each array as a tensor."""
    return [Tensor.from_numpy(a) for a in arrays]


def chosen(tokens, k, experts, seed=1):
    """Some experts for each token, not all of them used."""
    return np.random.default_rng(seed).integers(0, experts - 1, (tokens, k))


@every_float
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_gate(run_pair, draw, close, dtype, renormalize, k):
    """The likeliest experts, in order, and their shares of all or of each other."""
    logits = draw((9, 8), dtype, 1, 2.0)
    logits[3] = logits[3, 0]
    logits[4, 2:5] = logits[4].max()
    truth, experts = gate(logits, k, renormalize=renormalize)
    weights, actual = run_pair(ops.moe_gate, *tensors(logits), k, renormalize=renormalize)
    np.testing.assert_array_equal(experts, actual)
    assert actual.dtype == np.int64
    close(ops.moe_gate, truth, weights)


def test_gate_layouts(run_pair, lay, draw, how):
    """Logits may lie anywhere; no tokens give none; large logits do not overflow."""
    logits = lay(draw((5, 8), dtypes.f32, 1), how)
    plain = Tensor.from_numpy(logits.numpy().copy())
    for expected, actual in zip(
        run_pair(ops.moe_gate, plain, 2), run_pair(ops.moe_gate, logits, 2), strict=True
    ):
        np.testing.assert_array_equal(expected, actual)
    weights, _ = run_pair(ops.moe_gate, Tensor.from_numpy(np.empty((0, 8), np.float32)), 2)
    assert (0, 2) == weights.shape
    large = Tensor.from_numpy(np.array([[1e30, -1e30, 0]], np.float32))
    weights, experts = run_pair(ops.moe_gate, large, 2)
    assert ([[1.0, 0.0]], [[0, 2]]) == (weights.tolist(), experts.tolist())


@every_float
@pytest.mark.parametrize("shared", [True, False])
def test_linear(run, draw, close, dtype, shared):
    """Tokens times their experts' weights, with one input for all experts or one for each."""
    x = draw((6, 1 if shared else 3, 16), dtype, 1)
    w, experts = draw((5, 7, 16), dtype, 2, 0.25), chosen(6, 3, 5)
    rtol, atol = DEFAULT_TOLERANCE[dtype]
    actual = run(ops.moe_linear, *tensors(x, w, experts))
    close(ops.moe_linear, moe_linear(x, w, experts), actual, (rtol, atol + rtol))


def test_linear_layouts(run, lay, draw, close, how):
    """Tokens, weights and experts may lie anywhere."""
    x, w = (
        lay(draw((6, 3, 16), dtypes.f32, 1), how),
        lay(draw((5, 7, 16), dtypes.f32, 2, 0.25), how),
    )
    experts = lay(chosen(6, 3, 5), how)
    truth = moe_linear(x.numpy(), w.numpy(), experts.numpy())
    close(ops.moe_linear, truth, run(ops.moe_linear, x, w, experts), (1e-5, 1e-5))


@pytest.mark.parametrize("block", BLOCKS, ids=repr)
@every_float
def test_qmatmul(run, draw, close, block, dtype):
    """Weights in every block format, activations in every float dtype."""
    width = block.block_size
    w = ops.quantize(Tensor.from_numpy(draw((4, 5, width), dtypes.f32, 2, 0.1)), block)
    x, experts = draw((6, 1, width), dtype, 1), chosen(6, 2, 4)
    truth = moe_linear(x, ops.dequantize(w).numpy(), experts)
    rtol, atol = DEFAULT_TOLERANCE[dtype]
    actual = run(ops.moe_qmatmul, Tensor.from_numpy(x), w, Tensor.from_numpy(experts))
    close(ops.moe_qmatmul, truth, actual, (rtol, atol + rtol))
    each = np.repeat(x, 2, axis=1)
    again = run(ops.moe_qmatmul, Tensor.from_numpy(each), w, Tensor.from_numpy(experts))
    np.testing.assert_array_equal(actual, again)
    part = w.narrow(0, 1, 3)
    narrowed = run(ops.moe_qmatmul, Tensor.from_numpy(x), part, Tensor.from_numpy(experts * 0))
    whole = run(ops.moe_qmatmul, Tensor.from_numpy(x), w, Tensor.from_numpy(experts * 0 + 1))
    np.testing.assert_array_equal(whole, narrowed)


@pytest.mark.parametrize(
    ("tokens", "k", "width", "outs"), [(0, 2, 4, 3), (3, 0, 4, 3), (3, 2, 4, 0), (3, 2, 0, 5)]
)
def test_of_nothing(run, tokens, k, width, outs):
    """No tokens, no choices and no outputs give nothing; of no inputs sums are 0."""
    x, w = np.ones((tokens, 1, width), np.float32), np.ones((2, outs, width), np.float32)
    actual = run(ops.moe_linear, *tensors(x, w, np.zeros((tokens, k), np.int64)))
    assert (tokens, k, outs) == actual.shape
    assert not actual.any()


def test_experts_outside():
    """An expert outside is an error that names op and expert, and nothing is written."""
    x, w = np.ones((2, 1, 32), np.float32), np.ones((3, 4, 32), np.float32)
    blocks = ops.quantize(Tensor.from_numpy(w), dtypes.q8_0)
    for wrong in (-1, 3):
        experts = Tensor.from_numpy(np.array([[0], [wrong]]))
        for op, weights in ((ops.moe_linear, Tensor.from_numpy(w)), (ops.moe_qmatmul, blocks)):
            out = Tensor.from_numpy(np.full((2, 1, 4), 7, np.float32))
            message = rf"^{op.name}: expert {wrong} is outside the weights, which has 3 rows"
            with pytest.raises(OpError, match=message):
                op.into(out, Tensor.from_numpy(x), weights, experts)
            assert (out.numpy() == 7).all()


def test_errors():
    """Shapes, dtypes and counts that do not fit are errors that name the op."""
    x, w, logits = tensors(*(np.ones(s, np.float32) for s in ((2, 1, 4), (3, 5, 4), (2, 3))))
    experts = Tensor.from_numpy(np.zeros((2, 2), np.int64))
    for k in (0, 4):
        with pytest.raises(OpError, match=rf"moe_gate: k {k} must be between 1 and 3"):
            ops.moe_gate(logits, k)
    with pytest.raises(ShapeError, match=r"moe_gate: logits is \(tokens, experts\)"):
        ops.moe_gate(x, 1)
    narrow = Tensor.from_numpy(np.zeros((2, 2), np.int32))
    with pytest.raises(DTypeError, match=r"moe_linear: experts is i32; supported: i64"):
        ops.moe_linear(x, w, narrow)
    with pytest.raises(ShapeError, match=r"moe_linear: x is \(tokens, k or 1, in\), w is"):
        ops.moe_linear(x, w.narrow(2, 0, 2), experts)
    with pytest.raises(DTypeError, match=r"moe_linear: x is f32, w is f64"):
        ops.moe_linear(x, Tensor.from_numpy(np.ones((3, 5, 4))), experts)
    with pytest.raises(DTypeError, match=r"moe_qmatmul: w is f32; supported: q4_0"):
        ops.moe_qmatmul(x, w, experts)
