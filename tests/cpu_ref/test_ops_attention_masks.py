"""attention's masks, biases, ragged batches and pages against one dense sequence at a time, f64."""

from __future__ import annotations

import tracemalloc

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
WINDOWS = [None, (-1, -1), (0, 0), (2, -1), (-1, 1), (3, 2), (1, 0), (100, 100)]


def dense(q, k, v, *, scale=None, causal=False, window=None, softcap=0.0, bias=None, alibi=None):
    """One sequence by the definition in f64: outputs, and (heads, tokens) of log-sums."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    tokens, heads, dim = q.shape
    valid, group = len(k), heads // k.shape[1]
    left, right = window or (-1, -1)
    scale = dim**-0.5 if scale is None else scale
    out, lse = np.zeros((tokens, heads, v.shape[2])), np.full((heads, tokens), -np.inf)
    for t, h in np.ndindex(tokens, heads):
        place = valid - tokens + t
        scores, seen = [], []
        for j in range(valid):
            if causal and j > place:
                continue
            if (left >= 0 and j < place - left) or (right >= 0 and j > place + right):
                continue
            score = float(q[t, h] @ k[j, h // group]) * scale
            score = softcap * np.tanh(score / softcap) if softcap else score
            score += 0.0 if bias is None else float(bias[h, t, j])
            score -= 0.0 if alibi is None else float(alibi[h]) * abs(place - j)
            scores.append(score)
            seen.append(j)
        if seen and max(scores) > -np.inf:
            weights = np.exp(np.array(scores) - max(scores))
            out[t, h] = weights @ v[seen, h // group] / weights.sum()
            lse[h, t] = np.log(weights.sum()) + max(scores)
    return out, lse


def batched(q, k, v, lengths=None, bias=None, **kwargs):
    """The same of every sequence of a batch."""
    results = []
    for b in range(len(q)):
        n = k.shape[1] if lengths is None else int(lengths[b])
        own = None if bias is None else bias[b].astype(np.float64)
        results.append(dense(q[b], k[b, :n], v[b, :n], bias=own, **kwargs))
    return np.stack([r[0] for r in results]), np.stack([r[1] for r in results])


def drawn(draw, batch, tokens, heads, capacity, kv_heads, dtype, dim=8, value_dim=6):
    """Queries, keys and values."""
    return (
        draw((batch, tokens, heads, dim), dtype, 1),
        draw((batch, capacity, kv_heads, dim), dtype, 2),
        draw((batch, capacity, kv_heads, value_dim), dtype, 3),
    )


def tensors(*arrays):
    """Each array as a tensor."""
    return [Tensor.from_numpy(np.asarray(a)) for a in arrays]


def i32(*numbers):
    """A tensor of lengths, starts or pages."""
    return Tensor.from_numpy(np.array(numbers, np.int32))


@pytest.fixture(scope="session")
def both(run, run_pair, close):
    """Check attention and attention_lse of the same call, which must agree bit for bit."""

    def check(truth, *args, **kwargs):
        out, lse = run_pair(ops.attention_lse, *args, **kwargs)
        alone = run(ops.attention, *args, **kwargs)
        assert alone.tobytes() == out.tobytes()
        close(ops.attention, truth[0], alone)
        assert lse.dtype == (np.float64 if out.dtype == np.float64 else np.float32)
        close(ops.attention_lse, truth[1], lse)

    return check


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.bf16], ids=repr)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("tokens", "lengths"), [(1, (9, 4)), (5, (9, 5)), (6, (3, 0))])
def test_windows(both, draw, dtype, causal, window, tokens, lengths):
    """Windows to the left, to the right and causal, alone and together, at any length."""
    q, k, v = drawn(draw, 2, tokens, 4, 9, 2, dtype)
    rules = {"causal": causal, "window": window}
    both(batched(q, k, v, lengths, **rules), *tensors(q, k, v), i32(*lengths), **rules)


@every_float
def test_every_attribute(both, draw, dtype):
    """All attributes at once, in every float dtype."""
    q, k, v = drawn(draw, 2, 5, 4, 9, 2, dtype)
    bias = draw((2, 4, 5, 9), dtype, 4)
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    rules = {"causal": True, "window": (4, 3), "softcap": 1.5, "scale": 0.7}
    truth = batched(q, k, v, (9, 6), bias, alibi=slopes, **rules)
    given_bias, alibi = tensors(bias, slopes)
    both(truth, *tensors(q, k, v), i32(9, 6), bias=given_bias, alibi=alibi, **rules)


@pytest.mark.parametrize("softcap", [0.0, 0.5, 30.0])
@pytest.mark.parametrize("causal", [False, True])
def test_softcap(both, draw, softcap, causal):
    """Scores stay below the cap in magnitude; 0 is none."""
    q, k, v = drawn(draw, 2, 3, 4, 7, 2, dtypes.f32)
    q = q * 4
    rules = {"softcap": softcap, "causal": causal}
    both(batched(q, k, v, **rules), *tensors(q, k, v), **rules)


@pytest.mark.parametrize(
    "shape", [(2, 4, 3, 7), (1, 4, 3, 7), (2, 1, 1, 7), (3, 7), (7,), (4, 1, 1), (1,), ()]
)
def test_bias_broadcasts(both, draw, shape):
    """A bias may be one for each score, or shared by batches, heads, tokens or keys."""
    q, k, v = drawn(draw, 2, 3, 4, 7, 2, dtypes.f32)
    bias = np.asarray(draw(shape, dtypes.f32, 4))
    whole = np.broadcast_to(bias, (2, 4, 3, 7))
    (given_bias,) = tensors(bias)
    for rules in ({}, {"causal": True}):
        both(batched(q, k, v, None, whole, **rules), *tensors(q, k, v), bias=given_bias, **rules)


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f16, dtypes.bf16, dtypes.f8e4m3], ids=repr)
def test_bias_in_f32(both, draw, dtype):
    """A bias may be f32, whose digits the dtype of the queries may not have."""
    q, k, v = (
        draw((1, 3, 4, 8), dtype, 1),
        draw((1, 5, 2, 8), dtype, 2),
        draw((1, 5, 2, 6), dtype, 3),
    )
    bias = np.asarray(draw((4, 3, 5), dtypes.f32, 4)) * 8 + 1 / 3
    whole = np.broadcast_to(bias, (1, 4, 3, 5))
    both(batched(q, k, v, None, whole), *tensors(q, k, v), bias=tensors(bias)[0])


def test_bias_layouts(both, draw, lay, how):
    """A bias may lie anywhere, and be a mask of -inf; a row that it hides gives zeros."""
    q, k, v = drawn(draw, 2, 3, 4, 7, 2, dtypes.f32)
    array = np.where(draw((2, 4, 3, 7), dtypes.f32, 4) > 0.3, -np.inf, 0.5).astype(np.float32)
    array[0, 1, 2] = -np.inf
    bias = lay(array, how)
    both(batched(q, k, v, (5, 7), bias.numpy()), *tensors(q, k, v), i32(5, 7), bias=bias)


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16], ids=repr)
@pytest.mark.parametrize("causal", [False, True])
def test_alibi(both, draw, dtype, causal):
    """Scores fall with the distance of query and key, by each head's slope."""
    q, k, v = drawn(draw, 2, 3, 4, 7, 2, dtype)
    slopes = np.array([0.5, 0.0, 2.0, -0.25], np.float32)
    truth = batched(q, k, v, (7, 4), alibi=slopes, causal=causal)
    (alibi,) = tensors(slopes)
    both(truth, *tensors(q, k, v), i32(7, 4), alibi=alibi, causal=causal)


@every_float
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("starts", [(0, 3, 3, 8), (0, 0, 1, 8), (0, 8, 8, 8)])
def test_ragged(both, draw, dtype, causal, starts):
    """Sequences of different lengths, empty ones too, one after the other in one row."""
    q = draw((1, 8, 4, 8), dtype, 1)
    k, v = draw((3, 6, 2, 8), dtype, 2), draw((3, 6, 2, 5), dtype, 3)
    lengths = (6, 2, 4)
    slopes = np.array([0.5, 0.25, 0.0, 1.0], np.float32)
    rules = {"causal": causal, "window": (4, -1), "softcap": 5.0}
    out, lse = np.zeros((1, 8, 4, 5)), np.zeros((1, 4, 8))
    for s, n in enumerate(lengths):
        rows = slice(starts[s], starts[s + 1])
        out[0, rows], lse[0, :, rows] = dense(q[0, rows], k[s, :n], v[s, :n], alibi=slopes, **rules)
    optional = {"q_start": i32(*starts), "alibi": tensors(slopes)[0]}
    both((out, lse), *tensors(q, k, v), i32(*lengths), **optional, **rules)


@every_float
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 3])
def test_pages(both, draw, lay, dtype, causal, tokens):
    """Keys of a sequence lie in pages in any order; what else is in the cache is not read."""
    lengths = (10, 0, 4, 5)
    table = [[5, 0, 3], [-1, 99, -7], [2, 1 << 30, -1], [3, 1, 7]]
    k, v = draw((7, 4, 2, 8), dtype, 2), draw((7, 4, 2, 6), dtype, 3)
    q = draw((4, tokens, 4, 8), dtype, 1)
    own = [
        [pool[table[s][j // 4], j % 4] for j in range(n)]
        for pool in (k, v)
        for s, n in enumerate(lengths)
    ]
    own = [np.array(rows).reshape(-1, 2, k.shape[3] if i < 4 else 6) for i, rows in enumerate(own)]
    results = [dense(q[s], own[s], own[s + 4], causal=causal) for s in range(4)]
    truth = tuple(np.stack([r[i] for r in results]) for i in (0, 1))
    unused = [p for p in range(7) if p not in {5, 0, 3, 2, 1}]
    k[unused], v[unused] = np.nan, np.inf
    optional = {"block_table": i32(*table), "causal": causal}
    both(truth, *tensors(q, k, v), i32(*lengths), **optional)
    strided = [lay(a, "gaps") for a in (q, k, v)]
    both(truth, *strided, i32(*lengths), **optional)


def test_ragged_pages(both, draw):
    """Ragged queries over paged keys: a batch of prefills and decodes."""
    starts, lengths, table = (0, 1, 5, 6), (7, 4, 3), [[0, 3], [2, 0], [1, 0]]
    k, v = draw((4, 4, 2, 8), dtypes.f32, 2), draw((4, 4, 2, 6), dtypes.f32, 3)
    q = draw((1, 6, 4, 8), dtypes.f32, 1)
    out, lse = np.zeros((1, 6, 4, 6)), np.zeros((1, 4, 6))
    for s, n in enumerate(lengths):
        rows = slice(starts[s], starts[s + 1])
        own_k, own_v = (pool[table[s]].reshape(8, 2, -1)[:n] for pool in (k, v))
        out[0, rows], lse[0, :, rows] = dense(q[0, rows], own_k, own_v, causal=True)
    optional = {"q_start": i32(*starts), "block_table": i32(*table)}
    both((out, lse), *tensors(q, k, v), i32(*lengths), causal=True, **optional)


def test_empty_batches(run_pair, draw):
    """No sequences, no queries and no pages give nothing, or zeros and -inf."""
    k = Tensor.from_numpy(draw((2, 4, 1, 8), dtypes.f32))
    none = Tensor.from_numpy(np.empty((1, 0, 2, 8), np.float32))
    out, lse = run_pair(ops.attention_lse, none, k, k, q_start=i32(0, 0, 0))
    assert ((1, 0, 2, 8), (1, 2, 0)) == (out.shape, lse.shape)
    q = Tensor.from_numpy(draw((2, 3, 2, 8), dtypes.f32))
    table = Tensor.from_numpy(np.empty((2, 0), np.int32))
    out, lse = run_pair(ops.attention_lse, q, k, k, i32(0, 0), block_table=table)
    assert not out.any()
    assert np.isneginf(lse).all()
    page = Tensor.from_numpy(np.empty((3, 2, 1, 0), np.float32))
    keys = Tensor.from_numpy(draw((3, 2, 1, 8), dtypes.f32))
    out, lse = run_pair(
        ops.attention_lse, q, keys, page, i32(3, 0), block_table=i32([1, 2], [0, 0])
    )
    assert (2, 3, 2, 0) == out.shape
    assert np.isfinite(lse[0]).all()
    nobody = Tensor.from_numpy(np.empty((0, 4, 1, 8), np.float32))
    out, _ = run_pair(ops.attention_lse, none, nobody, nobody, q_start=i32(0))
    assert (1, 0, 2, 8) == out.shape


def test_merging(run_pair, draw, close):
    """Two results over disjoint keys merge by their log-sums into that over all keys."""
    q, k, v = drawn(draw, 2, 3, 4, 9, 2, dtypes.f32)
    parts = [
        run_pair(ops.attention_lse, *tensors(q, k[:, some], v[:, some]))
        for some in (slice(0, 4), slice(4, 9))
    ]
    weights = np.exp(np.stack([lse for _, lse in parts]).astype(np.float64))
    shares = (weights / weights.sum(axis=0)).transpose(0, 1, 3, 2)[..., None]
    merged = sum(share * out for share, (out, _) in zip(shares, parts, strict=True))
    close(ops.attention, batched(q, k, v)[0], merged.astype(np.float32))


@given(
    tokens=st.integers(0, 9),
    capacity=st.integers(0, 12),
    group=st.integers(1, 3),
    window=st.tuples(st.integers(-1, 6), st.integers(-1, 6)),
    causal=st.booleans(),
    block=st.sampled_from([1, 2, 4, 128]),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_any_window(both, draw, tokens, capacity, group, window, causal, block, data):
    """Any window over any lengths agrees, in blocks of any number of queries."""
    q, k, v = drawn(draw, 2, tokens, 2 * group, capacity, 2, dtypes.f32, 4, 4)
    lengths = [data.draw(st.integers(0, capacity)) for _ in range(2)]
    rules = {"causal": causal, "window": window}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_attention, "BLOCK", block)
        both(batched(q, k, v, lengths, **rules), *tensors(q, k, v), i32(*lengths), **rules)


def refused(error, message, *args, **kwargs):
    """Both ops refuse the call, each by its name, and write nothing."""
    with pytest.raises(error, match=rf"^attention: {message}"):
        ops.attention(*args, **kwargs)
    with pytest.raises(error, match=rf"^attention_lse: {message}"):
        ops.attention_lse(*args, **kwargs)


def test_data_out_of_range():
    """Lengths, starts and pages outside are errors that give them."""
    q, k = tensors(np.ones((1, 4, 2, 8), np.float32), np.ones((2, 3, 1, 8), np.float32))
    refused(
        OpError, r"kv_len \[3, 4\] is outside \[0, 3\]", q, k, k, i32(3, 4), q_start=i32(0, 1, 4)
    )
    for starts in ((1, 2, 4), (0, 2, 3), (0, 5, 4), (0, 2, 5)):
        refused(OpError, r"q_start \[.*\] must ascend from 0 to 4", q, k, k, q_start=i32(*starts))
    q2 = Tensor.from_numpy(np.ones((2, 1, 2, 8), np.float32))
    for page in (-1, 2):
        message = rf"page {page} is outside the cache, which has 2 rows"
        refused(OpError, message, q2, k, k, i32(6, 4), block_table=i32([0, 1], [0, page]))
    refused(OpError, r"kv_len \[7, 4\]", q2, k, k, i32(7, 4), block_table=i32([0, 1], [0, 1]))


def test_argument_errors():
    """Attributes out of range, and arguments that exclude or need each other, are errors."""
    q, k = tensors(np.ones((1, 4, 2, 8), np.float32), np.ones((1, 3, 1, 8), np.float32))
    for window in ((1,), (1, 2, 3), (-2, 0), (3.0, 2.0)):
        refused(OpError, "window .* must be two ints of at least -1", q, k, k, window=window)
    for cap in (-1.0, float("nan"), "a"):
        message = f"softcap {cap!r} must be a number, not negative"
        refused(OpError, message, q, k, k, softcap=cap)
    bias = Tensor.from_numpy(np.ones((1, 2, 4, 3), np.float32))
    refused(OpError, "bias goes with neither", q, k, k, bias=bias, q_start=i32(0, 4))
    one = Tensor.from_numpy(np.ones((1, 1, 2, 8), np.float32))
    refused(OpError, "bias goes with", one, k, k, i32(1), bias=bias, block_table=i32([0]))
    refused(OpError, "block_table needs kv_len", one, k, k, block_table=i32([0]))
    half, slopes = tensors(np.ones((1, 2, 4, 3), np.float16), np.ones(2, np.float64))
    refused(DTypeError, "q is f32, bias is f16", q, k, k, bias=half)
    wide = Tensor.from_numpy(np.zeros((1, 1, 1, k.shape[1] + 1), np.float32))
    refused(ShapeError, r"bias broadcasts to \(batch, heads", q, k, k, bias=wide)
    refused(DTypeError, "alibi is f64; supported: f32", q, k, k, alibi=slopes)
    for name, shape in (("q_start", (2,)), ("block_table", (1, 1))):
        wide = Tensor.from_numpy(np.zeros(shape, np.int64))
        refused(DTypeError, rf"{name} is i64; supported: i32", one, k, k, i32(1), **{name: wide})


def test_shape_errors():
    """Shapes that do not fit the batch or the heads are errors that give them."""
    q, k = tensors(np.ones((1, 4, 2, 8), np.float32), np.ones((1, 3, 1, 8), np.float32))
    narrow = Tensor.from_numpy(np.ones((1, 2, 4, 2), np.float32))
    with pytest.raises(ShapeError, match=r"which is \(1, 2, 4, 3\); got .* bias \(1, 2, 4, 2\)"):
        ops.attention(q, k, k, bias=narrow)
    slopes = Tensor.from_numpy(np.ones(3, np.float32))
    refused(ShapeError, r"alibi is \(heads,\)", q, k, k, alibi=slopes)
    refused(ShapeError, r"q_start is \(batch \+ 1,\)", q, k, k, q_start=i32([0, 4]))
    refused(ShapeError, r"k and v hold 2 sequences", q, k, k, q_start=i32(0, 1, 4))
    refused(ShapeError, r"block_table is \(1, blocks\)", q, k, k, i32(1), block_table=i32(0))
    two = Tensor.from_numpy(np.ones((2, 4, 2, 8), np.float32))
    refused(ShapeError, r"q is \(batch.* with q_start", two, k, k, q_start=i32(0, 4))
    flat = Tensor.from_numpy(np.ones((2, 0, 1, 8), np.float32))
    refused(ShapeError, r"pages hold at least one key", q, flat, flat, i32(0), block_table=i32([0]))


# -- what is not finite, and hidden --------------------------------------------


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, (2, 1)), (True, (3, 0))])
def test_a_hidden_key_adds_nothing(monkeypatch, odd, causal, window):
    """Its value may be NaN or infinite: queries that do not see it give what they give without."""
    monkeypatch.setattr(_attention, "BLOCK", 4)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 11, h, 8)).astype(np.float32) for h in (4, 2, 2))
    v[0, 7, 1, 3] = odd
    out = ops.attention(*map(Tensor.from_numpy, (q, k, v)), causal=causal, window=window).numpy()
    expected, _ = dense(q[0], k[0], v[0], causal=causal, window=window)
    np.testing.assert_allclose(out[0], expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(out[0, 0]).all()
    assert not np.isfinite(out[0, 7]).all()


def test_torch_leaks_what_we_leave_out():
    """The difference that the docstring tells of: torch's math path gives NaN to every query."""
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(3, 1, 1, 6, 8).unbind(0)
    v[0, 0, 5] = float("nan")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert bool(theirs.isnan().all())
    mine = [Tensor.from_numpy(t.transpose(1, 2).contiguous().numpy()) for t in (q, k, v)]
    assert np.isfinite(ops.attention(*mine, causal=True).numpy()[0, :5]).all()


@pytest.mark.parametrize("paged", [False, True])
def test_what_lies_beyond_kv_len_is_never_read(paged):
    """A cache need not be cleared: NaN in unused keys and values changes no bit."""
    rng = np.random.default_rng(1)
    q, k, v = (
        rng.normal(size=(2, n, h, 8)).astype(np.float32) for n, h in ((1, 4), (8, 2), (8, 2))
    )
    lengths = np.array([5, 3], np.int32)
    table = None
    if paged:
        k, v = (a.reshape(4, 4, 2, 8) for a in (k, v))
        table = Tensor.from_numpy(np.array([[0, 1], [2, 3]], np.int32))
    results = []
    for garbage in (0, np.nan, np.inf):
        a, b = (x.copy().reshape(2, 8, 2, 8) for x in (k, v))
        for s, n in enumerate(lengths):
            a[s, n:], b[s, n:] = garbage, garbage
        tensors = [Tensor.from_numpy(x) for x in (q, a.reshape(k.shape), b.reshape(v.shape))]
        got = ops.attention(*tensors, Tensor.from_numpy(lengths), causal=True, block_table=table)
        results.append(got.numpy().tobytes())
    assert len(set(results)) == 1


def test_a_bias_of_minus_infinity_is_a_score():
    """Its weight is 0, and 0 * NaN is NaN, as in torch."""
    q, k, v = (np.ones((1, 2, 1, 4), np.float32) for _ in range(3))
    v[0, 1] = np.nan
    bias = np.zeros((1, 1, 2, 2), np.float32)
    bias[..., 1] = -np.inf
    tensors = map(Tensor.from_numpy, (q, k, v))
    assert np.isnan(ops.attention(*tensors, bias=Tensor.from_numpy(bias)).numpy()).all()


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("tokens", [1, 300])
def test_keys_that_no_query_sees_cost_nothing(paged, tokens):
    """Of many keys a window's alone are gathered, widened and multiplied."""
    size, pages, window = 16, 2048, 100
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((pages, size, 1, 8)).astype(np.float16)
    k, q = Tensor.from_numpy(pool), rng.standard_normal((1, tokens, 2, 8)).astype(np.float16)
    q, length = Tensor.from_numpy(q), Tensor.from_numpy(np.array([pages * size], np.int32))
    order = rng.permutation(pages).astype(np.int32)
    table = Tensor.from_numpy(order[None])
    whole = Tensor.from_numpy(pool[order].reshape(1, pages * size, 1, 8))
    given = (k, k) if paged else (whole, whole)
    said = {"causal": True, "window": (window - 1, 0)}
    places = {"block_table": table} if paged else {}
    ops.attention(q, *given, length, **said, **places)
    tracemalloc.start()
    try:
        y = ops.attention(q, *given, length, **said, **places).numpy()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    scores = _attention.BLOCK * 2 * (_attention.BLOCK + window) * 4
    rows = (tokens + window + size) * 8
    assert peak < 100_000 + 3 * scores + 16 * rows
    assert peak < pool.nbytes
    own = pool[order].reshape(-1, 1, 8)[-window - tokens :]
    truth, _ = dense(q.array[0], own, own, **said)
    np.testing.assert_allclose(y[0], truth, rtol=1e-2, atol=1e-2)
