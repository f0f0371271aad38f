"""Attention on a device, against the same call in f64 on the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels import _attention
from propolis_rocm_kernels import ops_attention
from propolis_rocm_kernels import ops_attention_matrix
from propolis_rocm_kernels import ops_attention_quantized
from propolis_rocm_kernels.ops_attention import supports


BOTH = pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.f16], ids=str)
"""Of those on plain instructions, and on those that multiply matrices."""

TOLERANCE = {dtypes.f32: 2e-6, dtypes.f16: 1e-3, dtypes.bf16: 8e-3, dtypes.f64: 1e-14}


@pytest.fixture(scope="module")
def rounding():
    """A runtime in which numbers may be rounded on the way; see conftest.py for the other."""
    return Runtime.start(Config(fallback="error", plugins=["rocm_hip", "rocm_kernels"]))


@pytest.fixture
def check(rocm, runtime, rounding):
    """
    Attention of given arrays, on the device and on the CPU; the largest difference is judged.

    Of numbers of 16 bits by either runtime.
    """
    either = [rocm, rounding.device("rocm")]

    def run(dtype, q, k, v, *args, kv_view=lambda t: t, **options):
        kinds = {n: a.dtype for n, a in options.items() if isinstance(a, np.ndarray)}
        q, k, v = (a.astype(dtype.numpy) for a in (q, k, v))
        if "bias" in kinds:
            options["bias"] = options["bias"].astype(dtype.numpy)

        def call(device, arrays, extra, view):
            tensors = [Tensor.from_numpy(np.ascontiguousarray(a), device) for a in arrays]
            tensors[1:] = [view(t) for t in tensors[1:]]
            given = {
                n: Tensor.from_numpy(x, device) if isinstance(x, np.ndarray) else x
                for n, x in extra.items()
            }
            rest = [Tensor.from_numpy(a, device) for a in args]
            return [t.numpy() for t in ops.attention_lse(*tensors, *rest, **given)]

        wide = {n: x.astype(np.float64) if n == "bias" else x for n, x in options.items()}
        expected = call(runtime.cpu, [a.astype(np.float64) for a in (q, k, v)], wide, kv_view)
        devices = either if dtype in ops_attention_matrix.MATRIX else [rocm]
        actual = [part for device in devices for part in call(device, (q, k, v), options, kv_view)]
        for a, e in zip(actual, expected * len(devices), strict=True):
            assert a.shape == e.shape
            finite = np.isfinite(e)
            assert (np.isneginf(a.astype(np.float64)) == np.isneginf(e)).all()
            off = np.abs(a[finite].astype(np.float64) - e[finite])
            assert off.max(initial=0) <= TOLERANCE[dtype] * max(1, np.abs(e[finite]).max(initial=0))

    return run


@pytest.fixture
def parts(monkeypatch):
    """Of how many blocks the keys of a query are, call by call, on a device of many units."""
    monkeypatch.setattr(_attention, "_FILLING", 1000)
    found = []

    def plan(*args):
        made = _attention.decoding(*args)
        found.append(made.parts)
        return made

    monkeypatch.setattr(ops_attention, "decoding", plan)
    return found


def normal(*shape, seed=0):
    """Random numbers."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def i32(*values):
    """An index array."""
    return np.array(values, np.int32)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64], ids=str)
@pytest.mark.parametrize("dims", [(64, 64), (32, 32), (80, 80), (128, 64), (256, 256), (40, 130)])
@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_head_sizes(check, dtype, dims, tokens) -> None:
    """Decode and prefill kernels of each width give what the CPU gives, causal and grouped."""
    dim, value_dim = dims
    q = normal(2, tokens, 4, dim)
    k, v = normal(2, 90, 2, dim, seed=1), normal(2, 90, 2, value_dim, seed=2)
    check(dtype, q, k, v, i32(90, 77), causal=True)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("dims", [(512, 512), (576, 512), (64, 1024), (301, 270)])
@pytest.mark.parametrize("tokens", [1, 70])
def test_wide_heads(check, dtype, dims, tokens) -> None:
    """Heads that no block holds whole, as decoders of images have them, and latent attention."""
    dim, value_dim = dims
    q = normal(1, tokens, 2, dim)
    k, v = normal(1, 90, 1, dim, seed=1), normal(1, 90, 1, value_dim, seed=2)
    check(dtype, q, k, v, i32(83), causal=True)


@BOTH
@pytest.mark.parametrize("tokens", [1, 65])
def test_a_cache_of_heads_first(check, dtype, tokens) -> None:
    """A worker's cache, (b, h, capacity, d) seen as (b, capacity, h, d), is read where it lies."""
    q, k, v = normal(1, tokens, 9, 64), normal(1, 3, 300, 64, seed=1), normal(1, 3, 300, 64, seed=2)
    k[:, :, 201:] = np.nan
    v[:, :, 201:] = np.nan
    check(dtype, q, k, v, i32(201), causal=True, kv_view=lambda t: t.permute(0, 2, 1, 3))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (9, 1), (4, 2)], ids=str)
@pytest.mark.parametrize("length", [0, 1, 65, 700])
@pytest.mark.parametrize(
    "options", [{}, {"window": (300, 0)}, {"softcap": 2.0, "scale": 0.5}], ids="+".join
)
def test_blocks_share_keys(check, parts, heads, length, options) -> None:
    """The keys of one query are those of several blocks, whatever they find there."""
    queries, kept = heads
    q = normal(1, 2, queries, 64)
    k, v = normal(1, 700, kept, 64, seed=1), normal(1, 700, kept, 64, seed=2)
    check(dtypes.f32, q, k, v, i32(length), causal=True, **options)
    assert parts == [5 if "window" in options else 11]


@pytest.mark.parametrize(("dim", "keys", "count"), [(128, 3000, 24), (256, 9000, 63)])
@pytest.mark.parametrize("full", [True, False])
def test_many_blocks_share_keys(check, parts, dim, keys, count, full) -> None:
    """What more blocks found than are asked at once, of more elements than a block has threads."""
    q = normal(1, 1, 4, dim)
    k, v = normal(1, keys, 1, dim, seed=1), normal(1, keys, 1, dim, seed=2)
    check(dtypes.f32, q, k, v, i32(keys if full else 40), causal=True)
    assert parts == [count]


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=str)
def test_blocks_share_pages(check, parts, dtype) -> None:
    """So are those of pages, and those of each sequence and width of numbers."""
    q, table = normal(3, 1, 4, 128), np.arange(132, dtype=np.int32).reshape(3, 44)[::-1]
    k, v = normal(132, 16, 2, 128, seed=1), normal(132, 16, 2, 128, seed=2)
    check(dtype, q, k, v, i32(700, 129, 64), causal=True, block_table=np.ascontiguousarray(table))
    assert set(parts) == {11}


@BOTH
@pytest.mark.parametrize("tokens", [2, 66, 140])
@pytest.mark.parametrize(
    "options",
    [
        {"window": (5, 0)},
        {"window": (-1, 3)},
        {"window": (17, 2), "causal": True},
        {"window": (0, 0)},
        {"softcap": 2.0},
        {"scale": 0.5},
        {"alibi": np.array([0.5, 0.25, 0.125, 0.0625], np.float32), "causal": True},
        {"bias": normal(1, 4, 1, 150, seed=9)},
        {"bias": np.where(normal(2, 1, 1, 150, seed=9) > 0, -np.inf, 1.0)},
    ],
    ids="+".join,
)
def test_options(check, dtype, tokens, options) -> None:
    """Windows, soft caps, biases and ALiBi, for few queries and for many."""
    q, k, v = normal(2, tokens, 4, 64), normal(2, 150, 2, 64, seed=1), normal(2, 150, 2, 64, seed=2)
    check(dtype, q, k, v, i32(150, 131), **options)


@BOTH
@pytest.mark.parametrize("tokens", [3, 66])
def test_what_sees_nothing_is_zero(check, dtype, tokens) -> None:
    """No valid key, more causal queries than keys, and a bias of -inf: zeros, and lse -inf."""
    q, k, v = normal(2, tokens, 2, 64), normal(2, 80, 2, 64, seed=1), normal(2, 80, 2, 64, seed=2)
    check(dtype, q, k, v, i32(0, 1), causal=True)
    bias = np.full((1, 1, tokens, 1), -np.inf)
    bias[:, :, ::2] = 0
    check(dtype, q, k, v, bias=bias)


@BOTH
@pytest.mark.parametrize("starts", [(0, 1, 2, 2, 3), (0, 70, 71, 71, 200), (0, 0, 5, 64, 329)])
@pytest.mark.parametrize("paged", [False, True])
def test_ragged_batches(check, dtype, starts, paged) -> None:
    """Sequences of any number of queries, none too, over plain and over paged caches."""
    q = normal(1, starts[-1], 4, 64)
    lengths, options = i32(150, 80, 33, 149), {}
    if starts[-1] > 300:  # a sequence of several tiles of queries
        lengths = i32(150, 80, 73, 350)
    if paged:
        k, v = normal(30, 16, 2, 64, seed=1), normal(30, 16, 2, 64, seed=2)
        order = np.random.default_rng(0).permutation(30)
        table = np.resize(order, (4, 22)).astype(np.int32)
        table[1, 5:] = 999  # beyond its keys: anything
        options["block_table"] = table
    else:
        k, v = normal(4, 350, 2, 64, seed=1), normal(4, 350, 2, 64, seed=2)
    check(dtype, q, k, v, lengths, q_start=i32(*starts), causal=True, **options)


def test_large_scores_do_not_overflow(check) -> None:
    """Scores far apart, in any order, are weighed against the largest."""
    q, k, v = normal(1, 1, 1, 64) * 60, normal(1, 700, 1, 64, seed=1) * 60, normal(1, 700, 1, 64)
    check(dtypes.f64, q, k, v)
    for tokens in (1, 64):
        given = np.repeat(q, tokens, 1)
        check(dtypes.f32, given, np.sort(k, 1), v)
    for dtype, size in ((dtypes.bf16, 1e14), (dtypes.f16, 200.0)):
        large = normal(1, 70, 1, 64) * size, normal(1, 80, 1, 64, seed=1) * size
        check(dtype, *(a.astype(dtype.numpy).astype(np.float64) for a in large), v[:, :80])


@pytest.mark.parametrize("rise", [-0.3, 0.01, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_scores_that_rise_with_the_keys(check, dtype, rise, dim) -> None:
    """Sums are weighed anew when a score is far enough above what they were weighed against."""
    signs = np.sign(normal(1, 70, 1, dim))
    each = np.linspace(0.5, 2, 70)[:, None, None]  # queries rise apart
    k = np.repeat((np.arange(400) * rise / np.sqrt(dim))[None, :, None, None], dim, 3)
    v = normal(1, 400, 1, dim)
    check(dtype, np.abs(signs) * each, k, v)
    check(dtype, np.abs(signs) * each, k, v, causal=True, window=(90, 0))
    check(dtype, signs * each, k, v, softcap=30.0)


@pytest.mark.parametrize(
    ("shape", "options", "which"),
    [
        ((1, 70, 2, 64), {}, "matrix"),
        ((1, 70, 2, 40), {"causal": True, "window": (9, 0), "softcap": 5.0}, "matrix"),
        ((1, 70, 2, 256), {}, "matrix"),
        ((1, 70, 2, 72), {}, "up to 64, or multiples of 16"),
        ((1, 4, 2, 64), {}, "4 queries are for kernels of few"),
        ((1, 70, 2, 64), {"alibi": np.ones(2, np.float32)}, "is for other kernels"),
        ((1, 70, 2, 36), {}, "rows begin where"),
    ],
    ids=str,
)
def test_who_takes_a_call(rocm, rounding, monkeypatch, shape, options, which) -> None:
    """Many queries of 16 bits are for matrix instructions, which say what they leave to others."""
    if not ops_attention_matrix.has_instructions(rocm.properties.arch, dtypes.f16):
        pytest.skip(f"{rocm.properties.arch} has no matrix instructions for f16")
    device = rounding.device("rocm")
    q = Tensor.from_numpy(normal(*shape).astype(np.float16), device)
    given = {
        n: Tensor.from_numpy(x, device) if isinstance(x, np.ndarray) else x
        for n, x in options.items()
    }
    said = ops_attention_matrix.takes(q, q, q, **given)
    assert said is None if which == "matrix" else which in said
    widths = []
    size = ops_attention_matrix.bytes_of
    monkeypatch.setattr(
        ops_attention_matrix, "bytes_of", lambda n, **kw: widths.append(n) or size(n, **kw)
    )
    ops.attention(q, q, q, **given)
    assert bool(widths) == (which == "matrix")


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("dims", [(64, 64), (32, 96), (128, 128), (256, 192)])
@pytest.mark.parametrize("tokens", [1, 70])
def test_keys_and_values_in_blocks(rocm, runtime, dtype, dims, tokens) -> None:
    """A cache in q8_0, heads first, gives what the CPU gives of the numbers that it stands for."""
    dim, value_dim = dims
    q = normal(2, tokens, 4, dim).astype(dtype.numpy)
    kept = [
        ops.quantize(Tensor.from_numpy(normal(2, 2, 300, n, seed=n)), dtypes.q8_0)
        for n in (dim, value_dim)
    ]
    lengths = i32(300, 177)

    def call(device, q, given, op):
        on = [t.to(device).permute(0, 2, 1, 3) for t in given]
        said = Tensor.from_numpy(lengths, device)
        outs = op(Tensor.from_numpy(q, device), *on, said, causal=True, window=(200, 0))
        return [t.numpy().astype(np.float64) for t in outs]

    numbers = [ops.dequantize(t, dtypes.f64) for t in kept]
    expected = call(runtime.cpu, q.astype(np.float64), numbers, ops.attention_lse)
    actual = call(rocm, q, kept, ops.qattention_lse)
    for a, e in zip(actual, expected, strict=True):
        assert np.abs(a - e).max() <= TOLERANCE[dtype] * max(1, np.abs(e).max())


@pytest.mark.parametrize("kept", [dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("dims", [(64, 64), (32, 96), (128, 128), (256, 192)])
@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize("pages", [False, True])
def test_keys_and_values_in_16_bits(rocm, runtime, kept, dims, tokens, pages) -> None:
    """Queries in f32 are multiplied with them as they are: what f64 gives, to f32's precision."""
    dim, value_dim = dims
    q = normal(2, tokens, 4, dim).astype(np.float32)
    rows = [normal(38, 16, 2, n, seed=n).astype(kept.numpy) for n in (dim, value_dim)]
    table = np.random.default_rng(1).permutation(38).reshape(2, 19).astype(np.int32)
    said = {"causal": True, "window": (200, 0), "softcap": 5.0}
    if pages:
        given = [Tensor.from_numpy(x, rocm) for x in rows]
        said_there = {**said, "block_table": Tensor.from_numpy(table, rocm)}
    else:
        given = [Tensor.from_numpy(x[table].reshape(2, 304, 2, -1), rocm) for x in rows]
        said_there = said
    wide = [Tensor.from_numpy(x[table].reshape(2, 304, 2, -1).astype(np.float64)) for x in rows]
    on = Tensor.from_numpy(i32(300, 177), rocm)
    actual = ops.qattention_lse(Tensor.from_numpy(q, rocm), *given, on, **said_there)
    expected = ops.attention_lse(
        Tensor.from_numpy(q.astype(np.float64)), *wide, Tensor.from_numpy(i32(300, 177)), **said
    )
    for a, e in zip(actual, expected, strict=True):
        assert np.abs(a.numpy() - e.numpy()).max() <= 1e-5 * max(1, np.abs(e.numpy()).max())
    winner = rocm.table.trace(ops.qattention_lse, (dtypes.f32, kept)).winner
    assert (winner.provenance.plugin, winner.variant) == ("rocm_kernels", "halves")


def test_rows_that_no_pack_holds_are_left_to_others(rocm) -> None:
    """Keys in 16 bits at odd places are declined, with a reason."""
    q, k = (rocm.empty((1, 2, 1, 7), d) for d in (dtypes.f32, dtypes.f16))
    assert "16 bytes" in ops_attention_quantized._supports(q, k, k)


def test_blocks_are_appended_and_copied(rocm) -> None:
    """Whole blocks, of every format, into views of heads; positions beyond the cache are not."""
    for kind in (d for d in dtypes.ALL if d.is_block):
        width = 2 * kind.block_size
        raw = np.random.default_rng(0).integers(0, 256, 2 * 3 * 2 * kind.nbytes(width), np.uint8)
        x = Tensor.from_blocks(raw, kind, (2, 3, 2, width), rocm)
        memory = np.zeros(2 * 2 * 7 * kind.nbytes(width), np.uint8)
        cache = Tensor.from_blocks(memory, kind, (2, 2, 7, width), rocm).permute(0, 2, 1, 3)
        at = np.array([[4, 0, 6], [1, 2, 3]], np.int64)
        ops.kv_append(cache, x, Tensor.from_numpy(at, rocm))
        expected = np.zeros((2, 7, 2, kind.nbytes(width)), np.uint8)
        for sequence, places in enumerate(at):
            expected[sequence, places] = x.numpy()[sequence]
        np.testing.assert_array_equal(cache.numpy(), expected)
        ops.assign(cache.narrow(1, 3, 2), x.narrow(1, 0, 1))
        expected[:, 3:5] = x.numpy()[:, :1]
        np.testing.assert_array_equal(cache.numpy(), expected)


def test_heads_that_are_too_wide_are_declined() -> None:
    """What the kernels cannot hold is left to others, with a reason."""

    def shaped(*shape, dtype=dtypes.f16):
        return SimpleNamespace(shape=shape, dtype=dtype)

    q, k = shaped(1, 8, 2, 64), shaped(1, 9, 2, 64)
    assert supports(q, k, k) is None
    assert supports(shaped(1, 8, 2, 1024), k, shaped(1, 9, 2, 1024)) is None
    assert "head_dim 1025 and value_dim 64: up to 1024 each" == supports(
        shaped(1, 8, 2, 1025), k, k
    )
    assert "head_dim 64 and value_dim 1032: up to 1024 each" == supports(
        q, k, shaped(1, 9, 2, 1032)
    )
    double = shaped(1, 8, 2, 512, dtype=dtypes.f64)
    assert "head_dim 512 and value_dim 64: up to 256 each" == supports(double, k, k)
    many = shaped(1 << 20, 8, 2, 64)
    assert "1048576 keys" not in str(supports(many, k, k))
    assert "too many" in str(supports(many, k, k))


@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=str)
def test_queries_at_the_end_of_memory(dtype, rounding):
    """
    Nothing behind the last query is read, where its tile has room for more.

    The queries end where a segment of the allocator does, which memory that is none follows; the
    last sequence has one. An H100 lost its device so, with prompts of several sequences in a step.
    """
    device = rounding.device("rocm")
    heads, dim, tokens = 32, 64, 512
    out = device.empty((1, tokens, heads, dim), dtype)
    kept = Tensor.from_numpy(np.ones((2, tokens, 8, dim), dtype.numpy), device)
    lengths, starts = (
        Tensor.from_numpy(np.array(a, np.int32), device) for a in ([511, 1], [0, 511, 512])
    )
    # Last, so that nothing lies behind it.
    segment = Tensor.from_numpy(np.zeros(16 << 20, dtype.numpy), device)
    q = segment.narrow(0, segment.numel - out.numel, out.numel).reshape(*out.shape)
    ops.attention.into(out, q, kept, kept, lengths, causal=True, q_start=starts)
    np.testing.assert_array_equal(out.numpy().astype(np.float32), 1)
