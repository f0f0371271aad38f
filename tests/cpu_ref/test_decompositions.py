"""An op's decomposition gives what the op itself gives."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import OpError
from propolis.errors import ShapeError


X, Y = np.float32(np.random.default_rng(7).normal(size=(2, 2, 4, 6)))
CHANNELS = [np.float32([1, -2, 0.5, 3]), np.float32([0, 1, -1, 0.25])]
CALLS = {
    "add_rms_norm": ([X, Y, np.float32([1, 2, 3, 4, 5, 6])], {}),
    "gelu_erf_mul": ([X, Y], {}),
    "gelu_mul": ([X, Y], {}),
    "group_norm_silu": ([X, *CHANNELS], {"groups": 2}),
    "linear": ([X, np.float32(np.eye(5, 6)), np.float32([1, 2, 3, 4, 5])], {}),
    "quick_gelu": ([X], {}),
    "rsqrt": ([np.abs(X)], {}),
    "silu": ([X], {}),
    "silu_mul": ([X, Y], {}),
    "sqr": ([X], {}),
}
OTHERS = {
    "add_rms_norm_linear",
    "add_rms_norm_linear_rope",
    "add_rms_norm_linear_rope_kv_append",
    "add_rms_norm_qmatmul",
    "add_rms_norm_qmatmul_rope",
    "add_rms_norm_qmatmul_rope_kv_append",
    "qattention",
    "qattention_lse",
    "qmatmul",
    "rope_kv_append",
}


def close(name: str, expected: Tensor, actual: Tensor) -> None:
    """Both agree within twice the op's tolerance: the parts round once more."""
    spec = ops.catalogue()[name]
    rtol, atol = spec.tolerance.get(expected.dtype, (0.0, 0.0))
    truth = expected.numpy().astype(np.float64)
    np.testing.assert_allclose(
        actual.numpy().astype(np.float64),
        truth,
        rtol=2 * rtol,
        atol=2 * atol,
    )


def test_every_decomposition_is_tested() -> None:
    """No op has a decomposition that this file leaves out."""
    decomposed = {name for name, spec in ops.catalogue().items() if spec.decomposition}
    assert {*CALLS, *OTHERS} == decomposed


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16])
@pytest.mark.parametrize("name", CALLS)
def test_decomposed_is_the_same(name: str, dtype: dtypes.DType) -> None:
    """On every float dtype the parts give the op's result, to rounding."""
    arrays, attributes = CALLS[name]
    args = [Tensor.from_numpy(a.astype(dtype.numpy)) for a in arrays]
    spec = ops.catalogue()[name]
    expected = spec(*args, **attributes)
    outs = expected if isinstance(expected, tuple) else (expected,)
    places = [out.device.empty(out.shape, out.dtype) for out in outs]
    spec.decomposition.fn(*places, *args, **attributes)
    for out, place in zip(outs, places, strict=True):
        close(name, out, place)


@pytest.mark.parametrize("kind", [d for d in dtypes.ALL if d.is_block], ids=str)
def test_decomposed_qmatmul(kind: dtypes.DType) -> None:
    """Dequantising and multiplying is qmatmul, for every block format."""
    rng = np.random.default_rng(3)
    w = ops.quantize(Tensor.from_numpy(rng.normal(size=(5, 512)).astype(np.float32)), kind)
    x = Tensor.from_numpy(rng.normal(size=(3, 512)).astype(np.float32))
    out = x.device.empty((3, 5), dtypes.f32)
    ops.qmatmul.decomposition.fn(out, x, w)
    np.testing.assert_allclose(out.numpy(), ops.qmatmul(x, w).numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("gated", [False, True])
def test_decomposed_product_of_a_norm(*, gated: bool) -> None:
    """A sum, its norm, the product, and halves of it gated; the op, which nobody else has, too."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 3, 256)).astype(np.float32)
    weight = rng.normal(size=256).astype(np.float32)
    w = ops.quantize(Tensor.from_numpy(rng.normal(size=(6, 256)).astype(np.float32)), dtypes.q8_0)
    rows = (x + y).astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-3) * weight
    product = normed @ ops.dequantize(w).numpy().astype(np.float64).T
    if gated:
        gate, up = np.split(product, 2, -1)
        product = gate / (1 + np.exp(-gate)) * up
    given = (*map(Tensor.from_numpy, (x, y, weight)), w, 1e-3)
    outs = [w.device.empty(shape, dtypes.f32) for shape in (x.shape, product.shape)]
    spec = ops.add_rms_norm_qmatmul
    spec.decomposition.fn(*outs, *given, gated=gated)
    for total, out in (outs, spec(*given, gated=gated)):
        np.testing.assert_array_equal(total.numpy(), x + y)
        np.testing.assert_allclose(out.numpy(), product, rtol=1e-4, atol=1e-3)
    with pytest.raises(ShapeError, match="two halves"):
        spec(*given[:3], w.narrow(0, 0, 5), gated=True)


@pytest.mark.parametrize("interleaved", [False, True])
def test_decomposed_product_that_is_rotated(*, interleaved: bool) -> None:
    """The first heads of a norm's product are rotated, others not; wrong heads are refused."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 2, 3, 64)).astype(np.float32)
    weight = rng.normal(size=64).astype(np.float32)
    w = ops.quantize(Tensor.from_numpy(rng.normal(size=(24, 64)).astype(np.float32)), dtypes.q8_0)
    tables = [Tensor.from_numpy(rng.normal(size=(9, 3)).astype(np.float32)) for _ in range(2)]
    at = Tensor.from_numpy(np.array([[8, 0, 1], [2, 3, 4]], np.int32))
    plain = map(Tensor.from_numpy, (x, y, weight))
    product = ops.add_rms_norm_qmatmul(*plain, w, 1e-3)[1].unflatten(2, 8)
    turned = ops.rope(product.narrow(2, 0, 2), at, *tables, interleaved=interleaved).numpy()
    expected = np.concatenate([turned, product.numpy()[:, :, 2:]], 2).reshape(2, 3, 24)
    given = (*map(Tensor.from_numpy, (x, y, weight)), w, at, *tables, 1e-3)
    rules = {"heads": 2, "head_dim": 8, "interleaved": interleaved}
    outs = [w.device.empty(shape, dtypes.f32) for shape in (x.shape, expected.shape)]
    spec = ops.add_rms_norm_qmatmul_rope
    spec.decomposition.fn(*outs, *given, **rules)
    for total, out in (outs, spec(*given, **rules)):
        np.testing.assert_array_equal(total.numpy(), x + y)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)
    for wrong, why in (
        ({"heads": 4}, "supported: 0 to 3 of them"),
        ({"heads": -1}, "supported: 0 to 3 of them"),
        ({"head_dim": 4}, "supported: head_dim that divides the product, and has all pairs"),
        ({"head_dim": 7}, "supported: head_dim that divides"),
    ):
        with pytest.raises(OpError, match=why):
            spec(*given, **rules | wrong)


@pytest.mark.parametrize("kept", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("blocks", [False, True])
def test_decomposed_product_that_is_kept(kept: dtypes.DType, *, blocks: bool) -> None:
    """Keys and values are where they belong, queries a result; wrong heads are refused."""
    rng = np.random.default_rng(3)
    x, y = (Tensor.from_numpy(rng.normal(size=(2, 3, 64)).astype(np.float32)) for _ in "xy")
    weight = Tensor.from_numpy(rng.normal(size=64).astype(np.float32))
    w = Tensor.from_numpy(rng.normal(size=(48, 64)).astype(np.float32))
    w = ops.quantize(w, dtypes.q8_0) if blocks else w
    tables = [Tensor.from_numpy(rng.normal(size=(9, 3)).astype(np.float32)) for _ in range(2)]
    slots, at = (
        Tensor.from_numpy(np.array(rows, np.int32))
        for rows in ([[4, 0, 2], [1, 2, 3]], [[8, 0, 1], [2, 3, 4]])
    )
    turned = ops.add_rms_norm_qmatmul_rope if blocks else ops.add_rms_norm_linear_rope
    _, whole = turned(x, y, weight, w, at, *tables, 1e-3, heads=4, head_dim=8)
    each = whole.numpy().reshape(2, 3, 6, 8)
    expected = np.full((2, 5, 4, 8), 7, kept.numpy)
    for b, t in np.ndindex(2, 3):
        expected[b, slots.numpy()[b, t]] = each[b, t, 2:].astype(kept.numpy)
    name = f"add_rms_norm_{'qmatmul' if blocks else 'linear'}_rope_kv_append"
    spec = ops.catalogue()[name]
    outs = [w.device.empty(shape, dtypes.f32) for shape in (x.shape, (2, 3, 2, 8))]
    places = (slots, at, *tables, 1e-3)
    for run in (spec, lambda *args, **how: spec.decomposition.fn(*outs, *args, **how) or outs):
        cache = Tensor.from_numpy(np.full(expected.shape, 7, kept.numpy))
        total, q = run(cache, x, y, weight, w, *places, heads=2)
        np.testing.assert_array_equal(total.numpy(), x.numpy() + y.numpy())
        np.testing.assert_allclose(q.numpy(), each[:, :, :2], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            cache.numpy().astype(np.float32), expected.astype(np.float32), rtol=0.01, atol=0.01
        )
        assert (cache.numpy() != 7).any(axis=(2, 3)).tolist() == [
            [True, False, True, False, True],
            [False, True, True, True, False],
        ]
    with pytest.raises(OpError, match="3 heads of queries, 4 of keys and values in the cache"):
        spec(cache, x, y, weight, w, *places, heads=3)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16])
def test_decomposed_keys_and_values(dtype: dtypes.DType, *, interleaved: bool) -> None:
    """Keys are turned, values not, and both are where they belong; nothing else is written."""
    rng = np.random.default_rng(3)
    x = Tensor.from_numpy(rng.normal(size=(2, 3, 4, 8)).astype(np.float32))
    tables = [Tensor.from_numpy(rng.normal(size=(9, 3)).astype(np.float32)) for _ in range(2)]
    slots, at = (
        Tensor.from_numpy(np.array(rows, np.int32))
        for rows in ([[4, 0, 2], [1, 2, 3]], [[8, 0, 1], [2, 3, 4]])
    )
    keys = ops.rope(x.narrow(2, 0, 2), at, *tables, interleaved=interleaved).numpy()
    rows = np.concatenate([keys, x.numpy()[:, :, 2:]], 2).astype(dtype.numpy)
    expected = np.full((2, 5, 4, 8), 7, dtype.numpy)
    for b, t in np.ndindex(2, 3):
        expected[b, slots.numpy()[b, t]] = rows[b, t]
    spec = ops.rope_kv_append
    for run in (spec, spec.decomposition.fn):
        cache = Tensor.from_numpy(np.full(expected.shape, 7, dtype.numpy))
        run(cache, x, slots, at, *tables, interleaved=interleaved)
        np.testing.assert_array_equal(cache.numpy(), expected)


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32])
def test_decomposed_qattention(dtype: dtypes.DType) -> None:
    """Dequantising and attending is qattention, of pages and with every rule too."""
    rng = np.random.default_rng(3)
    q = Tensor.from_numpy(rng.normal(size=(2, 3, 4, 64)).astype(dtype.numpy))
    k, v = (
        ops.quantize(Tensor.from_numpy(rng.normal(size=(6, 4, 2, n))), dtypes.q8_0)
        for n in (64, 96)
    )
    table = Tensor.from_numpy(np.array([[5, 0], [2, 3]], np.int32))
    lengths = Tensor.from_numpy(np.array([7, 5], np.int32))
    rules = {"causal": True, "window": (3, 0), "softcap": 2.0, "scale": 0.3}
    expected = ops.qattention_lse(q, k, v, lengths, block_table=table, **rules)
    outs = [q.device.empty(t.shape, t.dtype) for t in expected]
    given = (q, k, v, lengths)
    ops.qattention_lse.decomposition.fn(*outs, *given, block_table=table, **rules)
    one = q.device.empty(outs[0].shape, dtype)
    ops.qattention.decomposition.fn(one, *given, block_table=table, **rules)
    np.testing.assert_array_equal(one.numpy(), outs[0].numpy())
    for out, truth in zip(outs, expected, strict=True):
        np.testing.assert_allclose(out.numpy(), truth.numpy(), rtol=1e-5, atol=1e-6)


def test_decomposed_whole_numbers() -> None:
    """Products of i8 and a bias in i32 are too: the parts are those of i8, and of i32."""
    rng = np.random.default_rng(3)
    x, w = (Tensor.from_numpy(rng.integers(-128, 128, (n, 9), np.int8)) for n in (3, 5))
    bias = Tensor.from_numpy(rng.integers(-(2**31), 2**31, 5, np.int32))
    decomposition = ops.linear.decomposition
    assert decomposition.parts(dtypes.i8) == {ops.matmul: (dtypes.i8,), ops.add: (dtypes.i32,)}
    out = x.device.empty((3, 5), dtypes.i32)
    decomposition.fn(out, x, w, bias)
    np.testing.assert_array_equal(out.numpy(), ops.linear(x, w, bias).numpy())
