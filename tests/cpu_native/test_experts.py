"""Mixtures of experts: each token by its own experts' weights; in blocks as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import OpError
from propolis_cpu_native import ops_moe
from propolis_cpu_native.ops_quantized import FORMATS


COUNT, ROWS, DEPTH = 6, 40, 512


@pytest.fixture(params=["fast", "exact"])
def device(runtime, request):
    """A CPU with the kernels, that may round activations or not."""
    return runtime(numerics=request.param).cpu


def experts_of(device, kind):
    """The weights of some experts, with rows that fill no tile."""
    rng = np.random.default_rng(7)
    numbers = rng.normal(0, 0.1, (COUNT, ROWS, DEPTH)).astype(np.float32)
    w = Tensor.from_numpy(numbers, device)
    return ops.quantize(w, kind) if kind.is_block else ops.cast(w, kind)


def prepared(device, w, x):
    """The same as a model has them."""
    op = ops.moe_qmatmul
    return DispatchTable.of(device).prepare(op, op.key(x.dtype, w.dtype), w)


def tokens_of(device, count, each, dtype=dtypes.f32):
    """Rows, and which experts each wants: one of them is wanted by nobody, some by many."""
    rng = np.random.default_rng(count)
    x = rng.normal(size=(count, each, DEPTH)).astype(dtype.numpy)
    chosen = rng.integers(0, COUNT - 1, (count, 3)).astype(np.int64)
    return Tensor.from_numpy(x, device), Tensor.from_numpy(chosen, device)


@pytest.mark.parametrize("kind", sorted(FORMATS, key=str), ids=str)
@pytest.mark.parametrize("each", [1, 3])
def test_the_same_bits_as_one_product(device, kind, each):
    """Of every row, alone or with others, whether its experts share it: those of ``qmatmul``."""
    w = experts_of(device, kind)
    x, chosen = tokens_of(device, 21, each)
    ready = prepared(device, w, x)
    y = ops.moe_qmatmul(x, ready, chosen).numpy()
    for t, j in np.ndindex(*chosen.shape):
        row = x.narrow(0, t, 1).narrow(1, j if each > 1 else 0, 1).reshape(1, DEPTH).contiguous()
        one = w.narrow(0, int(chosen.numpy()[t, j]), 1).reshape(ROWS, DEPTH).contiguous()
        np.testing.assert_array_equal(y[t, j], ops.qmatmul(row, one).numpy()[0])
    for t in (0, 20):
        alone = ops.moe_qmatmul(x.narrow(0, t, 1), ready, chosen.narrow(0, t, 1)).numpy()
        np.testing.assert_array_equal(y[t], alone[0])
    np.testing.assert_array_equal(y, ops.moe_qmatmul(x, w, chosen).numpy())


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("count", [1, 21, 60])
def test_plain_weights(device, dtype, count):
    """Products with weights in the tokens' dtype, few or many rows an expert, with sums in f32."""
    x, chosen = tokens_of(device, count, 1, dtype)
    w = experts_of(device, dtype)
    assert "cpu_native" in str(DispatchTable.of(device).trace(ops.moe_linear, dtype).server)
    y = ops.moe_linear(x, w, chosen).numpy().astype(np.float64)
    given, weights = x.numpy().astype(np.float64), w.numpy().astype(np.float64)
    expected = np.einsum("td,tjnd->tjn", given[:, 0], weights[chosen.numpy()])
    terms = np.einsum("td,tjnd->tjn", np.abs(given[:, 0]), np.abs(weights[chosen.numpy()]))
    rounding = {dtypes.f32: 2.0**-20, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}[dtype]
    assert (np.abs(y - expected) <= 2.0**-18 * terms + rounding * np.abs(expected)).all()


def test_an_expert_that_is_not_there(device):
    """It is named, before anything is computed with weights that are not there either."""
    w = experts_of(device, dtypes.q8_0)
    x, _ = tokens_of(device, 1, 1)
    for wrong in (-1, COUNT):
        chosen = Tensor.from_numpy(np.array([[0, wrong, 1]], np.int64), device)
        with pytest.raises(OpError, match=rf"expert {wrong} is outside the weights, which has 6"):
            ops.moe_qmatmul(x, w, chosen)


def test_a_captured_step_chooses_anew(device):
    """Replays multiply with the experts that are wanted then; the step is one call."""
    x, chosen = tokens_of(device, 2, 1)
    ready = prepared(device, experts_of(device, dtypes.q4_k), x)
    with capture(device) as graph:
        y = ops.moe_qmatmul(x, ready, chosen)
        y = ops.moe_qmatmul(x, ready, chosen)
    assert len(graph._joined or graph._again) == 1
    other = (chosen.numpy() + 1) % COUNT
    chosen.assign(other)
    graph.replay()
    again = ops.moe_qmatmul(x, ready, Tensor.from_numpy(other, device)).numpy()
    np.testing.assert_array_equal(y.numpy(), again)


@pytest.mark.parametrize("kind", [dtypes.q4_0, dtypes.q6_k], ids=str)
def test_repacked_and_back(device, kind):
    """Weights are as small as they were, and the elements come back bit for bit."""
    w = experts_of(device, kind)
    made = ops_moe.prepare(w)
    assert made.nbytes <= w.nbytes / ROWS * -(-ROWS // 16) * 16 * 1.05
    np.testing.assert_array_equal(made.restore().array, w.array)
    none = w.narrow(0, 0, 0)
    assert ops_moe.prepare(none).restore().shape == none.shape
