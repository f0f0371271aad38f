"""attention against its definition in f64, head by head and query by query."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError
from propolis_cpu_ref import _attention


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
causal_or_not = pytest.mark.parametrize("causal", [False, True])


def attention(q, k, v, lengths=None, scale=None, *, causal=False):
    """``softmax(q @ k.T * scale) @ v`` in f64, over the keys that each query sees."""
    batch, tokens, heads, dim = q.shape
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    scale = dim**-0.5 if scale is None else scale
    group = heads // k.shape[2]
    result = np.zeros((batch, tokens, heads, v.shape[3]))
    for b, t, h in np.ndindex(batch, tokens, heads):
        valid = k.shape[1] if lengths is None else int(lengths[b])
        seen = max(0, valid - (tokens - 1 - t)) if causal else valid
        if seen == 0:
            continue
        with np.errstate(invalid="ignore"):
            scores = (k[b, :seen, h // group] * q[b, t, h]).sum(axis=-1) * scale
            weights = np.exp(scores - scores.max())
            result[b, t, h] = weights @ v[b, :seen, h // group] / weights.sum()
    return result


def tensors(*arrays):
    """Each array as a tensor."""
    return [Tensor.from_numpy(np.asarray(a)) for a in arrays]


def drawn(draw, batch, tokens, heads, capacity, kv_heads, dim, value_dim, dtype):
    """Queries, keys and values."""
    return (
        draw((batch, tokens, heads, dim), dtype, 1),
        draw((batch, capacity, kv_heads, dim), dtype, 2),
        draw((batch, capacity, kv_heads, value_dim), dtype, 3),
    )


@every_float
@causal_or_not
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (6, 2), (9, 3), (4, 1)])
def test_heads(run, draw, close, dtype, causal, heads, kv_heads):
    """Heads of their own, grouped, and all with one key-value head; value sizes of their own."""
    q, k, v = drawn(draw, 2, 4, heads, 7, kv_heads, 8, 5, dtype)
    actual = run(ops.attention, *tensors(q, k, v), causal=causal)
    close(ops.attention, attention(q, k, v, causal=causal), actual)


@every_float
@causal_or_not
def test_layouts(run, lay, draw, close, how, dtype, causal):
    """Queries, keys, values and lengths may lie anywhere."""
    q, k, v = (lay(a, how) for a in drawn(draw, 3, 4, 4, 6, 2, 8, 6, dtype))
    lengths = lay(np.array([5, 6, 2], np.int32), how)
    truth = attention(*(t.numpy() for t in (q, k, v, lengths)), causal=causal)
    close(ops.attention, truth, run(ops.attention, q, k, v, lengths, causal=causal))


@every_float
@causal_or_not
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("lengths", [(0, 9), (1, 5), (9, 9), (0, 0)])
def test_garbage_beyond_the_valid_keys(run, draw, close, dtype, causal, tokens, lengths):
    """What is in a cache beyond kv_len, NaN or infinite, reaches no result."""
    q, k, v = drawn(draw, 2, tokens, 4, 9, 2, 8, 8, dtype)
    for b, n in enumerate(lengths):
        k[b, n:], v[b, n:] = np.nan, np.inf
    lengths = np.array(lengths, np.int32)
    truth = attention(q, k, v, lengths, causal=causal)
    assert np.isfinite(truth).all()
    close(ops.attention, truth, run(ops.attention, *tensors(q, k, v, lengths), causal=causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.bf16], ids=repr)
def test_no_keys(run, same, dtype, causal):
    """Queries that see no key give zeros: for kv_len 0, and for a cache of no capacity."""
    q = np.ones((2, 3, 4, 8), dtype.numpy)
    for capacity in (0, 5):
        k = np.full((2, capacity, 2, 8), np.nan, dtype.numpy)
        lengths = np.zeros(2, np.int32)
        same(0.0, run(ops.attention, *tensors(q, k, k, lengths), causal=causal))
        if capacity == 0:
            same(0.0, run(ops.attention, *tensors(q, k, k), causal=causal))


@every_float
@pytest.mark.parametrize(("tokens", "valid"), [(5, 3), (7, 1), (4, 4), (2, 6), (130, 2), (257, 1)])
def test_causal_alignment(run, draw, close, dtype, tokens, valid):
    """The last query sees every valid key, the one before one less, the first perhaps none."""
    q, k, v = drawn(draw, 1, tokens, 2, valid + 2, 1, 4, 4, dtype)
    lengths = np.array([valid], np.int32)
    actual = run(ops.attention, *tensors(q, k, v, lengths), causal=True)
    close(ops.attention, attention(q, k, v, lengths, causal=True), actual)
    blind = max(0, tokens - valid)
    assert not actual[:, :blind].any()
    if tokens >= valid:
        np.testing.assert_array_equal(actual[0, blind], v[0, :1, 0].repeat(2, axis=0))


@causal_or_not
@pytest.mark.parametrize("tokens", [127, 128, 129, 300])
@pytest.mark.parametrize("before", [0, 5])
def test_block_boundaries(run, draw, close, causal, tokens, before):
    """No query is lost where one block of them ends and the next begins."""
    q, k, v = drawn(draw, 1, tokens, 2, tokens + before, 1, 4, 4, dtypes.f32)
    actual = run(ops.attention, *tensors(q, k, v), causal=causal)
    close(ops.attention, attention(q, k, v, causal=causal), actual)


@given(
    batch=st.integers(0, 3),
    tokens=st.integers(0, 9),
    kv_heads=st.integers(1, 3),
    group=st.integers(0, 3),
    capacity=st.integers(0, 12),
    dims=st.tuples(st.integers(1, 9), st.integers(0, 9)),
    causal=st.booleans(),
    dtype=st.sampled_from(FLOATS),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_any_sizes(
    run, draw, close, batch, tokens, kv_heads, group, capacity, dims, causal, dtype, data
):
    """Any sizes agree with the definition, in blocks of any number of queries."""
    q, k, v = drawn(draw, batch, tokens, kv_heads * group, capacity, kv_heads, *dims, dtype)
    lengths = None
    if data.draw(st.booleans()):
        given_lengths = [data.draw(st.integers(0, capacity)) for _ in range(batch)]
        lengths = np.array(given_lengths, np.int32)
    optional = [] if lengths is None else tensors(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_attention, "BLOCK", data.draw(st.sampled_from([1, 2, 4, 128])))
        actual = run(ops.attention, *tensors(q, k, v), *optional, causal=causal)
    close(ops.attention, attention(q, k, v, lengths, causal=causal), actual)


@every_float
@pytest.mark.parametrize("scale", [0.0, 1.0, -0.5, 0.125])
def test_scale(run, draw, close, dtype, scale):
    """A scale that is given replaces that of the head size, zero too."""
    q, k, v = drawn(draw, 1, 3, 2, 5, 2, 16, 4, dtype)
    actual = run(ops.attention, *tensors(q, k, v), scale=scale)
    close(ops.attention, attention(q, k, v, scale=scale), actual)


def test_one_tensor_thrice(run, draw, close):
    """Queries, keys and values may be one tensor."""
    x = draw((2, 5, 3, 4), dtypes.f32)
    tensor = Tensor.from_numpy(x)
    actual = run(ops.attention, tensor, tensor, tensor, causal=True)
    close(ops.attention, attention(x, x, x, causal=True), actual)


@causal_or_not
def test_large_scores(run, draw, close, causal):
    """Scores whose exponentials overflow are shifted first; in f16 sums are wide."""
    for dtype, spread in ((dtypes.f32, 1e4), (dtypes.f16, 100.0)):
        q, k, v = drawn(draw, 1, 3, 2, 5, 1, 8, 4, dtypes.f64)
        q, k, v = ((a * spread).astype(dtype.numpy) for a in (q, k, v))
        actual = run(ops.attention, *tensors(q, k, v), causal=causal)
        close(ops.attention, attention(q, k, v, causal=causal), actual)


def test_nan_in_what_is_seen(run, close):
    """NaN in a query, or in a key or value that it sees, is in its result; others have none."""
    x = np.ones((3, 2, 1, 2), np.float32)
    q, k, v = x.copy(), x.copy(), x.copy()
    q[0, 0], k[1, 1], v[2, 0, 0, 1] = np.nan, np.nan, np.nan
    actual = run(ops.attention, *tensors(q, k, v))
    close(ops.attention, attention(q, k, v), actual)
    masked = run(ops.attention, *tensors(q, k, x), causal=True)
    close(ops.attention, attention(q, k, x, causal=True), masked)


@pytest.mark.parametrize("wrong", [-1, 6, 2**31 - 1])
def test_lengths_outside_the_capacity(wrong):
    """A kv_len outside is an error that gives all of them, and nothing is written."""
    q, k = tensors(np.ones((2, 1, 1, 2)), np.ones((2, 5, 1, 2)))
    out = Tensor.from_numpy(np.full((2, 1, 1, 2), 7.0))
    lengths = Tensor.from_numpy(np.array([3, wrong], np.int32))
    with pytest.raises(OpError, match=rf"attention: kv_len \[3, {wrong}\] is outside \[0, 5\]"):
        ops.attention.into(out, q, k, k, lengths)
    assert (out.numpy() == 7).all()


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
        ((1, 2, 4, 8), (1, 2, 4, 8), (1, 3, 4, 8)),
        ((1, 2, 4, 8), (1, 2, 4, 7), (1, 2, 4, 8)),
        ((1, 2, 4, 8), (1, 2, 3, 8), (1, 2, 3, 8)),
        ((1, 2, 4, 8), (1, 2, 0, 8), (1, 2, 0, 8)),
    ],
)
def test_shape_errors(q, k, v):
    """Shapes that do not fit are an error that gives the rule and all three."""
    with pytest.raises(ShapeError, match=r"attention: q is \(batch, tokens.*; got q \(.*v \("):
        ops.attention(*tensors(*(np.ones(s, np.float32) for s in (q, k, v))))


def test_other_errors():
    """Mixed dtypes, integers, batches and lengths that do not fit are errors."""
    x, half = tensors(np.ones((2, 1, 1, 4), np.float32), np.ones((2, 1, 1, 4), np.float16))
    with pytest.raises(DTypeError, match=r"attention: q is f32, k is f16, v is f32; .*ops.cast"):
        ops.attention(x, half, x)
    whole = Tensor.from_numpy(np.ones((2, 1, 1, 4), np.int32))
    with pytest.raises(DTypeError, match=r"attention: q is i32; supported: f64, f32, f16, bf16,"):
        ops.attention(whole, whole, whole)
    with pytest.raises(ShapeError, match=r"attention: kv_len is \(2,\); got kv_len \(1,\)"):
        ops.attention(x, x, x, Tensor.from_numpy(np.ones(1, np.int32)))
    one = Tensor.from_numpy(np.ones((1, 1, 1, 4), np.float32))
    with pytest.raises(ShapeError, match=r"attention: k and v hold 1 sequences; got .*k \(2, 1,"):
        ops.attention(one, x, x)
    with pytest.raises(DTypeError, match=r"attention: kv_len is i64; supported: i32"):
        ops.attention(x, x, x, Tensor.from_numpy(np.ones(2, np.int64)))


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16], ids=repr)
@causal_or_not
@pytest.mark.parametrize("heads_first", [False, True])
def test_keys_and_values_in_blocks(run, draw, close, dtype, causal, heads_first):
    """They are what they stand for; what lies behind a sequence's keys is not looked at."""
    q, k, v = drawn(draw, 2, 4, 6, 9, 2, 64, 32, dtypes.f32)
    lengths, order = np.array([9, 5], np.int32), (0, 2, 1, 3) if heads_first else (0, 1, 2, 3)
    kept = []
    for numbers in (k, v):
        blocks = ops.quantize(Tensor.from_numpy(numbers.transpose(order).copy()), dtypes.q8_0)
        blocks = blocks.permute(*order)
        blocks.array[1, 5:] = 0xFF  # scales that are NaN
        kept.append(blocks)
    truth = [ops.dequantize(blocks, dtypes.f64).array for blocks in kept]
    actual = run(
        ops.qattention,
        Tensor.from_numpy(q.astype(dtype.numpy)),
        *kept,
        Tensor.from_numpy(lengths),
        causal=causal,
    )
    expected = attention(q.astype(dtype.numpy), *truth, lengths, causal=causal)
    close(ops.qattention, expected, actual)
