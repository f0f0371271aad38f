"""Philox numbers against Random123's known answers, and the distributions they are to have."""

from __future__ import annotations

import math

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
from propolis_cpu_ref import ops_random


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
every_place = pytest.mark.parametrize("place", ["contiguous", "permuted", "offset", "step", "gaps"])
TOP = 2**64 - 1


def philox(counter, key):
    """Philox 4x32-10 of four and two words, in Python's integers (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def words(count, seed, offset):
    """The stream that the spec defines: lane i % 4 of counter offset + i // 4."""
    key = [seed % 2**32, seed >> 32]
    result = []
    for i in range(-(-count // 4)):
        n = offset + i
        result += philox([(n >> (32 * j)) % 2**32 for j in range(4)], key)
    return result


def units(count, seed, offset):
    """The upper 24 bits of each word as a fraction."""
    return np.array([w >> 8 for w in words(count, seed, offset)], np.float64) * 2.0**-24


def normals(count, seed, offset):
    """Box and Muller's in f64."""
    u = units(count + 3, seed, offset)
    radius, angle = np.sqrt(-2 * np.log(u[::2] + 2.0**-24)), 2 * np.pi * u[1::2]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:count]


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter, key, answer):
    """The oracle here gives the known answers of Random123."""
    assert answer == " ".join(f"{w:08x}" for w in philox(counter, key))


@pytest.mark.parametrize("seed", [0, 1, 299792458, 2**32, 0x299F31D0_A4093822, TOP])
@pytest.mark.parametrize("offset", [0, 1, 2**32 - 2, 2**32, 2**63, TOP - 1, TOP])
def test_words(seed, offset):
    """Every seed and offset gives the words of Philox, across both carries of the counter."""
    for count in (0, 1, 4, 13):
        expected = words(count, seed, offset)
        assert expected[:count] == ops_random.words(count, seed, offset).tolist()
        assert expected == ops_random.words(count, seed, offset, whole=True).tolist()


@every_float
@every_place
def test_uniform(change, close, dtype, place):
    """Element i in row-major order is made of word i, in any view, in every float dtype."""
    u = units(3 * 7 * 2, 5, 9)[: 3 * 7 * 2].reshape(3, 7, 2)
    x = np.ones((3, 7, 2), dtype.numpy)
    close(ops.uniform, u, change(ops.uniform, x, seed=5, offset=9, how=place))
    actual = change(ops.uniform, x, -2.0, 3.0, seed=5, offset=9, how=place)
    close(ops.uniform, -2 + u * 5, actual)


@every_float
@every_place
def test_normal(change, close, dtype, place):
    """Pairs of words make pairs of numbers, in any view, in every float dtype."""
    truth = normals(3 * 7 * 2, 5, 9).reshape(3, 7, 2)
    x = np.ones((3, 7, 2), dtype.numpy)
    close(ops.normal, truth, change(ops.normal, x, seed=5, offset=9, how=place))
    actual = change(ops.normal, x, 0.5, 0.25, seed=5, offset=9, how=place)
    close(ops.normal, 0.5 + truth * 0.25, actual)


def test_uniform_is_exact(change, same):
    """In f32 and f64 the numbers in [0, 1) are the same, bit for bit."""
    u = units(1000, 3, 0)
    for dtype in (np.float32, np.float64):
        same(u, change(ops.uniform, np.ones(1000, dtype), seed=3))


def test_normal_at_length(change, close):
    """A hundred thousand normal numbers are as close to the truth as the spec says."""
    u = ops_random.words(100_000, 1, 0) >> np.uint64(8)
    u = u.astype(np.float64).reshape(-1, 2) * 2.0**-24
    radius, angle = np.sqrt(-2 * np.log(u[:, 0] + 2.0**-24)), 2 * np.pi * u[:, 1]
    truth = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    for dtype in (np.float32, np.float64):
        close(ops.normal, truth, change(ops.normal, np.ones(100_000, dtype), seed=1))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (3, 0), (5,)])
def test_shapes(change, shape):
    """Any number of elements, odd ones too, are the first of the stream."""
    count = math.prod(shape)
    x = np.ones(shape, np.float64)
    np.testing.assert_array_equal(
        units(count, 7, 0)[:count].reshape(shape), change(ops.uniform, x, seed=7)
    )
    np.testing.assert_allclose(
        normals(count, 7, 0).reshape(shape), change(ops.normal, x, seed=7), rtol=1e-12
    )


@given(seed=st.integers(0, TOP), offset=st.integers(0, TOP), cut=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_offsets_continue_a_stream(seed, offset, cut):
    """A draw in two parts is the draw in one, where the first part takes whole counters."""
    kept = min(cut, TOP - offset)
    whole, rest = np.empty(40, np.float32), np.empty(40 - 4 * kept, np.float32)
    for op in (ops.uniform, ops.normal):
        all_of_it = op(Tensor.from_numpy(whole), seed=seed, offset=offset).numpy()
        later = op(Tensor.from_numpy(rest), seed=seed, offset=offset + kept).numpy()
        np.testing.assert_array_equal(all_of_it[4 * kept :], later)


def test_distribution_of_uniform(change):
    """A million numbers: mean, variance, range, every tenth as full, neighbours unrelated."""
    x = change(ops.uniform, np.ones(1_000_000, np.float32), seed=42).astype(np.float64)
    assert 0 <= x.min()
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 1e6)
    assert abs(x.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / 1e6)
    counts, _ = np.histogram(x, 100, (0, 1))
    chi = ((counts - 1e4) ** 2 / 1e4).sum()
    assert abs(chi - 99) < 5 * math.sqrt(2 * 99)
    for lag in (1, 2, 4):
        assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 5e-3


def test_distribution_of_normal(change):
    """A million numbers: the first four moments, tails, and both of a pair unrelated."""
    x = change(ops.normal, np.ones(1_000_000, np.float32), seed=42).astype(np.float64)
    assert np.isfinite(x).all()
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 5 * math.sqrt(spread / 1e6)
    for sigma, share in ((1, 0.31731), (2, 0.0455), (3, 0.0027)):
        assert abs((np.abs(x) > sigma).mean() - share) < 5 * math.sqrt(share / 1e6)
    assert abs(np.corrcoef(x[::2], x[1::2])[0, 1]) < 5e-3
    assert abs(np.corrcoef(np.abs(x[::2]), np.abs(x[1::2]))[0, 1]) < 5e-3


def test_seeds_differ(change):
    """Neighbouring seeds have nothing in common."""
    x, y = (change(ops.uniform, np.ones(10_000, np.float32), seed=s) for s in (1, 2))
    assert (x == y).mean() < 0.01
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.05


def test_beyond_the_dtype(change):
    """Bounds and deviations too large for the dtype overflow without a warning."""
    for op, args in ((ops.uniform, (0.0, 1e300)), (ops.normal, (0.0, 1e300))):
        for dtype in (np.float16, np.float32):
            assert not np.isfinite(change(op, np.ones(9, dtype), *args, seed=1)).all()


def test_errors():
    """Seeds and offsets outside 64 bits, and integers, are errors."""
    x = Tensor.from_numpy(np.full(3, 7, np.float32))
    for op in (ops.uniform, ops.normal):
        for what, value in (("seed", -1), ("seed", 2**64), ("offset", -1), ("offset", 2**64)):
            with pytest.raises(
                OpError, match=rf"{op.name}: {what} {value} is outside \[0, 2\*\*64"
            ):
                op(x, **{"seed": 0, what: value})
        with pytest.raises(DTypeError, match=rf"{op.name}: target is i32; supported: f64"):
            op(Tensor.from_numpy(np.ones(3, np.int32)), seed=0)
    assert [7, 7, 7] == x.numpy().tolist()
