"""Attention: what a query gets does not depend on how many others are asked beside it."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_cpu_native import ops_attention
from propolis_cpu_native._native import matrix_instructions


KEYS, HEADS, KV_HEADS = 300, 6, 2


def inputs(dim, kept, kv_heads=KV_HEADS):
    """Queries in f32, keys and values as they are kept."""
    rng = np.random.default_rng(17)
    q = rng.normal(0, 1, (1, KEYS, HEADS, dim)).astype(np.float32)
    k, v = (rng.normal(0, 1, (1, KEYS, kv_heads, dim)).astype(kept) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize(
    "options",
    [{}, {"window": (90, 0)}, {"softcap": 20.0}, {"alibi": True}],
    ids=["plain", "window", "softcap", "alibi"],
)
@pytest.mark.parametrize(
    ("dim", "kept", "kv_heads"),
    [
        (64, np.float16, KV_HEADS),
        (64, np.float16, HEADS),
        (64, np.float32, KV_HEADS),
        (40, np.float32, HEADS),
        (72, np.float16, 1),
        (136, np.float16, KV_HEADS),
    ],
)
def test_a_query_is_the_same_alone_and_among_others(runtime, dim, kept, kv_heads, options):
    """
    To the bit, by each of the ways: one query, three, a vector of them, and all of a prompt.

    So what a prompt leaves does not depend on where it was parted, nor an answer on its batch.
    """
    device = runtime(
        numerics="exact"
    ).cpu  # AMX's tiles, which take prompts else, add in another order
    q, k, v = inputs(dim, kept, kv_heads)
    name = ops.attention if kept is np.float32 else ops.qattention
    if options.get("alibi"):
        slopes = np.linspace(0.01, 0.2, HEADS, dtype=np.float32)
        options = {"alibi": Tensor.from_numpy(slopes, device)}

    def attend(first, end):
        given = (q[:, first:end], k[:, :end], v[:, :end])
        tensors = (Tensor.from_numpy(np.ascontiguousarray(a), device) for a in given)
        return name(*tensors, causal=True, **options).numpy()[0]

    whole = attend(0, KEYS)
    for queries in (1, 3, 6, 7, 11, 40):
        for end in (queries, 63, 64, 65, 130, 257, KEYS):
            if end >= queries:
                got = attend(end - queries, end)
                np.testing.assert_array_equal(got, whole[end - queries : end])


def test_a_sequence_is_the_same_alone_and_in_a_batch(runtime):
    """Sequences with one query and with many, in one call, are those of calls of their own."""
    device = runtime().cpu
    rng = np.random.default_rng(18)
    tokens, valid, dim = [1, 5, 40, 2, 17, 1], [200, 5, 100, 65, 17, 64], 64
    blocks, size = 8, 32
    pages = (len(tokens) * blocks, size, KV_HEADS, dim)
    k, v = (Tensor.from_numpy(rng.normal(0, 1, pages).astype(np.float16), device) for _ in range(2))
    table = rng.permutation(len(tokens) * blocks).reshape(len(tokens), blocks).astype(np.int32)
    starts = np.cumsum([0, *tokens]).astype(np.int32)
    q = rng.normal(0, 1, (1, int(starts[-1]), HEADS, dim)).astype(np.float32)

    def attend(queries, lengths, rows, places):
        return ops.qattention(
            Tensor.from_numpy(np.ascontiguousarray(queries), device),
            k,
            v,
            Tensor.from_numpy(np.asarray(lengths, np.int32), device),
            causal=True,
            q_start=Tensor.from_numpy(np.asarray(rows, np.int32), device),
            block_table=Tensor.from_numpy(np.ascontiguousarray(places), device),
        ).numpy()

    together = attend(q, valid, starts, table)
    for i, count in enumerate(tokens):
        own = slice(starts[i], starts[i + 1])
        alone = attend(q[:, own], valid[i : i + 1], [0, count], table[i : i + 1])
        np.testing.assert_array_equal(together[:, own], alone)


@pytest.mark.parametrize("queries", [1, 3, 11, 40])
def test_long_contexts_are_right(runtime, queries):
    """Parts of keys add up to float64's attention, where none, some and many share a task."""
    device = runtime().cpu
    rng = np.random.default_rng(19)
    keys, dim = 1500, 32
    q = rng.normal(0, 3, (1, queries, 2, dim)).astype(np.float32)
    k, v = (rng.normal(0, 1, (1, keys, 1, dim)).astype(np.float32) for _ in range(2))
    out = ops.attention(*(Tensor.from_numpy(a, device) for a in (q, k, v)), causal=True).numpy()
    scores = np.einsum("qhd,kd->hqk", q[0].astype(np.float64), k[0, :, 0]) * dim**-0.5
    hidden = np.arange(keys) > np.arange(keys - queries, keys)[:, None]
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out[0], np.einsum("hqk,kd->qhd", weights, v[0, :, 0]), atol=3e-6)


def test_an_infinite_value_reaches_those_who_see_it(runtime):
    """An infinity among values makes the sums of its column infinite, and no NaN of others."""
    device = runtime().cpu
    q, k, v = inputs(64, np.float32)
    v[0, 3, :, 7] = np.inf
    out = ops.attention(
        *(Tensor.from_numpy(np.ascontiguousarray(a), device) for a in (q[:, -1:], k, v)),
        causal=True,
    ).numpy()
    assert np.isposinf(out[..., 7]).all()
    assert np.isfinite(np.delete(out, 7, axis=-1)).all()


def test_kept_in_blocks(runtime):
    """Keys in q8_0: a query's bits are those among others too."""
    device = runtime(numerics="exact").cpu
    q, k, v = inputs(64, np.float32)
    k, v = (ops.quantize(Tensor.from_numpy(a, device), dtypes.q8_0) for a in (k, v))
    length = Tensor.from_numpy(np.asarray([KEYS], np.int32), device)

    def attend(queries):
        part = Tensor.from_numpy(np.ascontiguousarray(q[:, -queries:]), device)
        return ops.qattention(part, k, v, length, causal=True).numpy()

    whole = attend(KEYS)
    for queries in (1, 3, 6, 7, 11, 40):
        np.testing.assert_array_equal(attend(queries), whole[:, -queries:])


@pytest.mark.skipif(not matrix_instructions(), reason="this CPU has no instructions for bf16")
@pytest.mark.parametrize("options", [{}, {"window": (90, 0)}, {"softcap": 20.0}], ids=str)
@pytest.mark.parametrize("kept", [dtypes.f16, dtypes.bf16, dtypes.q8_0], ids=str)
@pytest.mark.parametrize("dim", [32, 96])
def test_kept_keys_by_tiles(runtime, dim, kept, options):
    """Of queries in f32: scores that lose next to nothing, values and weights rounded to bf16."""
    device = runtime(threads=2).cpu
    q, k, v = inputs(dim, np.float32)
    q *= 4  # scores whose weights, of a few keys each, a rounding of queries would move
    k, v = (Tensor.from_numpy(a, device) for a in (k, v))
    if kept.is_block:
        k, v = (ops.quantize(a, kept) for a in (k, v))
        wide = [ops.dequantize(a, dtypes.f32) for a in (k, v)]
    else:
        k, v = (ops.cast(a, kept) for a in (k, v))
        wide = [ops.cast(a, dtypes.f32) for a in (k, v)]
    queries = Tensor.from_numpy(q, device)
    found = Tensor.from_numpy(np.full(q.shape, np.nan, np.float32), device)
    by_tiles = ops_attention.KERNELS[1][0]
    by_tiles(found, queries, k, v, causal=True, **options)
    expected = ops.attention(queries, *wide, causal=True, **options).numpy()
    off = np.abs(found.numpy() - expected)
    assert np.sqrt(np.mean(off**2)) < 2.0**-9 * np.sqrt(np.mean(expected**2))
    assert off.max() < 2.0**-7 * np.abs(wide[1].numpy()).max()


@pytest.mark.skipif(not matrix_instructions(), reason="this CPU has no instructions for bf16")
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_tiles_leave_what_is_infinite_to_vectors(runtime, which):
    """One would make NaN of what does not see it, and of scores that a cap makes finite."""
    device = runtime(threads=2).cpu
    q, k, v = inputs(64, np.float16)
    {"q": q, "k": k, "v": v}[which][0, -1, 0, 7] = np.inf
    given = [Tensor.from_numpy(a, device) for a in (q, k, v)]
    by_tiles, by_vectors = (Tensor.from_numpy(np.empty_like(q), device) for _ in range(2))
    ops_attention.KERNELS[1][0](by_tiles, *given, causal=True, softcap=30.0)
    ops_attention.KERNELS[0][0](by_vectors, *given, causal=True, softcap=30.0)
    np.testing.assert_array_equal(by_tiles.numpy(), by_vectors.numpy())
