"""Keys that are turned as they are kept: by packs and one by one, wherever the cache's rows lie."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels.ops_rope import _plan


CAPACITY = 7
TOLERANCE = {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}


def turned(x, positions, cos, sin, *, interleaved):
    """Heads of keys, of which the first elements are rotated; zeros where no table says how."""
    y, pairs = x.copy(), cos.shape[1]
    first = np.arange(pairs) * (2 if interleaved else 1)
    second = first + (1 if interleaved else pairs)
    known = (positions >= 0) & (positions < len(cos))
    c, s = (np.where(known[..., None], t[np.where(known, positions, 0)], 0) for t in (cos, sin))
    c, s = c[:, :, None], s[:, :, None]
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., first] * s + x[..., second] * c
    return y


def cache_of(rocm, heads, dim, kind, beside):
    """(1, capacity, heads, dim), by heads, full of threes; rows are so many elements apart more."""
    memory = rocm.empty((heads, CAPACITY, dim + beside), kind)
    ops.fill(memory, 3.0)
    return memory.narrow(2, 0, dim).permute(1, 0, 2).unsqueeze(0)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize(("dim", "half"), [(64, 32), (16, 8), (16, 4), (12, 4), (10, 3), (8, 4)])
@pytest.mark.parametrize("slots", [[4], [6, 0, 3], [-1, 2, CAPACITY]])
@pytest.mark.parametrize("beside", [0, 2, 4])
def test_kept(rocm, dim, half, kind, interleaved, slots, beside) -> None:
    """Of views of a product: what belongs in each slot, and nothing else is written."""
    rng = np.random.default_rng(dim + half)
    queries, heads, tokens = 3, 2, len(slots)
    every = rng.normal(size=(1, tokens, queries + 2 * heads, dim)).astype(np.float32)
    cos, sin = rng.normal(size=(2, 9, half)).astype(np.float32)
    at = np.array([[8, 0, 9][:tokens]], np.int32)  # no table has a row 9
    x = Tensor.from_numpy(every, rocm).narrow(2, queries, 2 * heads)
    cache = cache_of(rocm, 2 * heads, dim, kind, beside)
    given = (Tensor.from_numpy(a, rocm) for a in (np.array([slots], np.int32), at, cos, sin))
    ops.rope_kv_append(cache, x, *given, interleaved=interleaved)
    new = every[:, :, queries:].astype(np.float64)
    new[:, :, :heads] = turned(new[:, :, :heads], at, cos, sin, interleaved=interleaved)
    expected = np.full((1, CAPACITY, 2 * heads, dim), 3.0)
    for token, slot in enumerate(slots):
        if 0 <= slot < CAPACITY:
            expected[0, slot] = new[0, token]
    tolerance = TOLERANCE[kind.name]
    found = cache.numpy().astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(("apart", "packed"), [(8, 1), (12, 1), (10, 0), (9, 0)])
def test_rows_that_no_pack_begins_at(tokens, apart, packed) -> None:
    """A cache whose rows lie no whole packs apart is written one by one, a single token too."""
    shape, strides = (1, tokens, 4, 8), (tokens * 56, 56, 8, 1)
    into = (1, CAPACITY, 4, 8), (4 * CAPACITY * apart, apart, CAPACITY * apart, 1)
    assert _plan(shape, strides, 4, 4, into)[0] == packed
    assert _plan(shape, strides, 4, 4)[0] == 1
