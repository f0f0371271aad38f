"""The ops against torch, live: an oracle that others wrote."""

from __future__ import annotations

import importlib
import os

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops


def load_torch():
    """
    Torch, or a skip that says why.

    ``PROPOLIS_REQUIRE_ORACLES=1`` makes its absence a failure: CI never skips silently.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            raise
        reason = f"no torch ({exc}); `make oracles` installs it"
        return pytest.skip(reason, allow_module_level=True)


torch = load_torch()
functional = torch.nn.functional
pytestmark = pytest.mark.oracle

TORCH = {
    dtypes.f64: torch.float64,
    dtypes.f32: torch.float32,
    dtypes.f16: torch.float16,
    dtypes.bf16: torch.bfloat16,
    dtypes.f8e4m3: torch.float8_e4m3fn,
    dtypes.f8e5m2: torch.float8_e5m2,
    dtypes.u8: torch.uint8,
    dtypes.i8: torch.int8,
    dtypes.i16: torch.int16,
    dtypes.i32: torch.int32,
    dtypes.i64: torch.int64,
}
PLAIN = list(TORCH)
FLOATS = [d for d in PLAIN if d.is_float]
INTEGERS = [d for d in PLAIN if d.is_integer]
# What torch computes in on the CPU; it has no f8 arithmetic.
COMPUTED = [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16]

every_computed = pytest.mark.parametrize("dtype", COMPUTED, ids=repr)


def to_torch(array):
    """The same bits as a torch tensor."""
    raw = torch.from_numpy(np.array(array).reshape(-1).view(np.uint8).copy())
    return raw.view(TORCH[dtypes.from_numpy(array.dtype)]).reshape(array.shape)


def to_numpy(tensor, dtype):
    """The same bits as a numpy array."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().view(dtype.numpy)


def wide(array):
    """As f64, for torch to compute the truth in."""
    return to_torch(array.astype(np.float64))


def f64(tensor):
    """A torch result in f64, as numpy."""
    return tensor.to(torch.float64).numpy()


def test_absence_is_no_silent_skip(monkeypatch):
    """Without torch the file is skipped with a reason, or fails where oracles are required."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setenv("PROPOLIS_REQUIRE_ORACLES", "1")
    with pytest.raises(ImportError):
        load_torch()
    monkeypatch.delenv("PROPOLIS_REQUIRE_ORACLES")
    with pytest.raises(pytest.skip.Exception, match="no torch"):
        load_torch()


def comparable(source, target):
    """Numbers of ``source`` whose conversion torch defines; see ``test_casts``."""
    rng = np.random.default_rng(1)
    limits = {dtypes.f8e4m3: 448, dtypes.f8e5m2: 57344}
    narrow = min((limits[d] for d in (source, target) if d in limits), default=None)
    with np.errstate(all="ignore"):
        if source.is_integer:
            info = np.iinfo(source.numpy)
            end = 2**20 if target.is_float else 2**63 - 1
            end = narrow or end
            low, high = max(info.min, -end), min(info.max, end)
            return rng.integers(low, high, 4000, source.numpy, endpoint=True)
        if target.is_integer:
            info = np.iinfo(target.numpy)
            low, high = max(info.min, -(2.0**31)), min(info.max, 2.0**31 - 1)
            x = np.concatenate([rng.uniform(low, high, 2000), rng.normal(0, 50, 4000)])
        else:
            bits = rng.integers(0, 2**32, 20000, np.uint32).view(np.float32)
            x = np.concatenate([bits, rng.normal(0, 100, 4000).astype(np.float32)])
        x = x.astype(source.numpy)
        wide = x.astype(np.float64)
    if target.is_integer:
        return x[(wide > low) & (wide < high)]
    # Versions of torch differ in what is beyond the largest f8.
    return x[np.abs(wide) <= narrow] if narrow else x


def test_whole_products(run):
    """Torch multiplies i8 into i32 with the same sums, as its own op for that and of i32."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((24, 200), (200, 16)))
    actual = run(ops.matmul, Tensor.from_numpy(a), Tensor.from_numpy(b))
    np.testing.assert_array_equal(torch._int_mm(to_torch(a), to_torch(b)).numpy(), actual)
    wide = to_torch(a).to(torch.int32) @ to_torch(b).to(torch.int32)
    np.testing.assert_array_equal(wide.numpy(), actual)


@pytest.mark.parametrize("target", PLAIN, ids=repr)
@pytest.mark.parametrize("source", PLAIN, ids=repr)
def test_casts(run, source, target):
    """
    Torch converts the same, where it defines what it does.

    Compared are integers with integers; and of numbers that f32 holds, floats with
    floats (torch rounds f64 to f8 and bf16 by way of f32), integers to floats, and
    floats to integers inside the target's range (outside is undefined in C++).
    """
    x = comparable(source, target)
    assert x.size > 1000
    actual = run(ops.cast, Tensor.from_numpy(x), target)
    expected = to_numpy(to_torch(x).to(TORCH[target]), target)
    if target.is_float:
        with np.errstate(all="ignore"):
            actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("source", [dtypes.f16, dtypes.bf16, dtypes.f8e4m3], ids=repr)
@pytest.mark.parametrize("target", [dtypes.f64, dtypes.f32], ids=repr)
def test_widening(run, source, target):
    """Every bit pattern of the narrow floats has torch's value."""
    bits = np.arange(2 ** (8 * source.block_bytes), dtype=f"u{source.block_bytes}")
    x = bits.view(source.numpy)
    actual = run(ops.cast, Tensor.from_numpy(x), target)
    np.testing.assert_array_equal(actual, to_numpy(to_torch(x).to(TORCH[target]), target))


@pytest.mark.parametrize("dtype", [*COMPUTED, *INTEGERS], ids=repr)
@pytest.mark.parametrize("name", ["add", "mul"])
def test_binary(run, draw, dtype, name):
    """Sums and products have torch's bits."""
    a, b = draw((5, 1, 33), dtype, 1), draw((7, 33), dtype, 2)
    actual = run(getattr(ops, name), Tensor.from_numpy(a), Tensor.from_numpy(b))
    expected = getattr(torch, name)(to_torch(a), to_torch(b))
    np.testing.assert_array_equal(actual.reshape(-1), to_numpy(expected, dtype))


@every_computed
def test_silu_mul(run, draw, close, dtype):
    """silu(gate) * up agrees."""
    gate, up = draw((5, 129), dtype, 1, 5.0), draw((5, 129), dtype, 2)
    truth = f64(functional.silu(wide(gate)) * wide(up))
    close(ops.silu_mul, truth, run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up)))


def test_silu_at_the_ends(run):
    """Infinities and NaN give what torch gives."""
    x = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0, -0.0], np.float32)
    one = Tensor.from_numpy(np.ones(7, np.float32))
    actual = run(ops.silu_mul, Tensor.from_numpy(x), one)
    np.testing.assert_array_equal(actual, functional.silu(to_torch(x)).numpy())


@every_computed
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_rms_norm(run, draw, close, dtype, eps):
    """rms_norm agrees."""
    x, weight = draw((2, 3, 577), dtype, 1), draw((577,), dtype, 2)
    truth = f64(functional.rms_norm(wide(x), (577,), wide(weight), eps))
    actual = run(ops.rms_norm, Tensor.from_numpy(x), Tensor.from_numpy(weight), eps)
    close(ops.rms_norm, truth, actual)


@every_computed
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(run, draw, close, dtype, dim):
    """It agrees along any dimension, also where scores are infinite or NaN."""
    x = draw((4, 9, 65), dtype, 1, 5.0)
    x[0, 0, 0], x[1, :, 3], x[2, 5, 7], x[3, 2] = np.nan, -np.inf, np.inf, -np.inf
    truth = f64(functional.softmax(wide(x), dim))
    close(ops.softmax, truth, run(ops.softmax, Tensor.from_numpy(x), dim))


@pytest.mark.parametrize("dtype", [*COMPUTED, *INTEGERS], ids=repr)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_argmax(run, draw, dtype, dim):
    """The largest is where torch finds it; NaN is the largest."""
    x = draw((4, 9, 65), dtype)
    x = x if dtype.is_integer else np.where(np.abs(x) > 2.5, np.nan, x).astype(dtype.numpy)
    actual = run(ops.argmax, Tensor.from_numpy(x), dim)
    # Of ties torch may take any: compare what is there, and that it is the first.
    expected = to_torch(x).argmax(dim).numpy()
    picked, wanted = (
        np.take_along_axis(x, np.expand_dims(i, dim), dim) for i in (actual, expected)
    )
    np.testing.assert_array_equal(picked.astype(np.float64), wanted.astype(np.float64))
    assert (actual <= expected).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_embedding(run, draw, dtype, index):
    """Rows have torch's bits."""
    table, ids = draw((11, 7), dtype), np.array([[0, 10, 3], [3, 3, 9]], index)
    actual = run(ops.embedding, Tensor.from_numpy(ids), Tensor.from_numpy(table))
    expected = to_torch(table)[to_torch(ids).long()]
    np.testing.assert_array_equal(actual.reshape(-1), to_numpy(expected, dtype))


@every_computed
def test_linear_and_matmul(run, draw, close, dtype):
    """Linear layers and products of matrices agree; the spread keeps results near one."""
    x, w = draw((2, 5, 129), dtype, 1), draw((33, 129), dtype, 2, 0.05)
    bias = draw((33,), dtype, 3)
    tensors = [Tensor.from_numpy(a) for a in (x, w, bias)]
    truth = f64(functional.linear(*map(wide, (x, w, bias))))
    close(ops.linear, truth, run(ops.linear, *tensors))
    truth = f64(torch.matmul(wide(x), wide(w).T))
    close(ops.matmul, truth, run(ops.matmul, tensors[0], tensors[1].permute(1, 0)))


@every_computed
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads"), [(1, 4, 4), (65, 6, 2), (130, 3, 1)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(run, draw, close, dtype, causal, tokens, heads, kv_heads, scale):
    """Attention agrees, with grouped heads; torch's causal mask is ours for as many keys."""
    q = draw((2, tokens, heads, 16), dtype, 1)
    k, v = draw((2, tokens, kv_heads, 16), dtype, 2), draw((2, tokens, kv_heads, 16), dtype, 3)
    tensors = [Tensor.from_numpy(a) for a in (q, k, v)]
    actual = run(ops.attention, *tensors, scale=scale, causal=causal)
    by_head = [wide(a).transpose(1, 2) for a in (q, k, v)]
    truth = functional.scaled_dot_product_attention(
        *by_head, is_causal=causal, scale=scale, enable_gqa=True
    )
    close(ops.attention, f64(truth.transpose(1, 2)), actual)


def test_attention_with_a_cache(run, draw, close):
    """A few new queries over a longer cache see what torch sees with a mask at the end."""
    q, k, v = (draw((2, n, h, 16), dtypes.f32, n) for n, h in ((5, 4), (40, 2), (40, 2)))
    lengths = [23, 9]
    optional = Tensor.from_numpy(np.array(lengths, np.int32))
    tensors = [Tensor.from_numpy(a) for a in (q, k, v)]
    actual = run(ops.attention, *tensors, optional, causal=True)
    for b, valid in enumerate(lengths):
        mask = torch.ones(5, valid, dtype=torch.bool).tril(valid - 5)
        by_head = [wide(a[b : b + 1]).transpose(1, 2) for a in (q, k[:, :valid], v[:, :valid])]
        truth = functional.scaled_dot_product_attention(*by_head, attn_mask=mask, enable_gqa=True)
        close(ops.attention, f64(truth.transpose(1, 2)), actual[b : b + 1])
