"""rope against its definition in f64, pair by pair."""

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


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
both_pairings = pytest.mark.parametrize("interleaved", [False, True])


def tables(rows, pairs, base=10000.0):
    """Cosines and sines of each position's angles, as f32."""
    speeds = base ** (-np.arange(pairs) / max(pairs, 1))
    angles = np.arange(rows)[:, None] * speeds
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rope(x, positions, cos, sin, interleaved):
    """Rotate each pair in f64, by the definition."""
    result = x.astype(np.float64)
    pairs = cos.shape[1]
    for b, t in np.ndindex(positions.shape):
        row = int(positions[b, t])
        for i in range(pairs):
            m, n = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
            c, s = float(cos[row, i]), float(sin[row, i])
            first, second = x[b, t, :, m].astype(np.float64), x[b, t, :, n].astype(np.float64)
            with np.errstate(invalid="ignore"):
                result[b, t, :, m] = first * c - second * s
                result[b, t, :, n] = first * s + second * c
    return result


def rotated(run, x, positions, cos, sin, interleaved):
    """What the op under test makes of arrays."""
    tensors = (Tensor.from_numpy(a) for a in (x, positions, cos, sin))
    return run(ops.rope, *tensors, interleaved=interleaved)


@every_float
@both_pairings
@pytest.mark.parametrize("pairs", [0, 1, 3, 4])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rotation(run, draw, close, dtype, interleaved, pairs, index):
    """Both pairings, of all elements or the first few, in every float dtype."""
    x = draw((2, 3, 2, 8), dtype)
    positions = np.array([[0, 1, 2], [9, 4, 4]], index)
    cos, sin = tables(10, pairs)
    actual = rotated(run, x, positions, cos, sin, interleaved)
    close(ops.rope, rope(x, positions, cos, sin, interleaved), actual)
    # What is not rotated is copied, bit for bit; position 0 turns by no angle.
    assert x[..., 2 * pairs :].tobytes() == actual[..., 2 * pairs :].tobytes()
    np.testing.assert_array_equal(x[0, 0], actual[0, 0])


@every_float
@both_pairings
def test_layouts(run, lay, draw, close, how, dtype, interleaved):
    """Every input may lie anywhere."""
    x = lay(draw((2, 3, 2, 8), dtype), how)
    positions = lay(np.array([[5, 1, 2], [3, 4, 0]], np.int32), how)
    cos, sin = (lay(table, how) for table in tables(6, 4))
    actual = run(ops.rope, x, positions, cos, sin, interleaved=interleaved)
    arrays = [t.numpy() for t in (x, positions, cos, sin)]
    close(ops.rope, rope(*arrays, interleaved), actual)


@both_pairings
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.f16], ids=repr)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 2), (1, 1, 9, 64), (0, 3, 2, 4), (2, 0, 2, 4), (2, 3, 0, 4), (1, 2, 3, 7)]
)
def test_shapes(run, draw, close, dtype, interleaved, shape):
    """Tensors without elements, of one pair and of odd head sizes work."""
    x = draw(shape, dtype)
    positions = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape[:2])
    cos, sin = tables(8, shape[3] // 2)
    actual = rotated(run, x, positions, cos, sin, interleaved)
    close(ops.rope, rope(x, positions, cos, sin, interleaved), actual)


@both_pairings
def test_ieee(run, close, interleaved):
    """NaN and infinity reach the two elements of their pair, by the definition, and no others."""
    x = np.ones((1, 2, 1, 6), np.float32)
    x[0, 1, 0, :3] = [np.inf, np.nan, 1]
    positions = np.array([[3, 1]])
    cos, sin = tables(4, 3)
    actual = rotated(run, x, positions, cos, sin, interleaved)
    close(ops.rope, rope(x, positions, cos, sin, interleaved), actual)
    zeros = rotated(run, x, np.array([[0, 0]]), cos, sin, interleaved)
    close(ops.rope, rope(x, np.array([[0, 0]]), cos, sin, interleaved), zeros)


@both_pairings
@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.f8e4m3], ids=repr)
def test_overflow(run, same, dtype, interleaved):
    """What a rotation lifts above the largest number is infinite, in f8e4m3 NaN."""
    x = np.full((1, 1, 1, 2), 60000 if dtype is dtypes.f16 else 440).astype(dtype.numpy)
    half = np.full((1, 1), 0.7071, np.float32)
    actual = rotated(run, x, np.zeros((1, 1), np.int32), half, half, interleaved)
    same(np.inf if dtype is dtypes.f16 else np.nan, actual[..., 1])


def test_one_table_twice(run, draw, close):
    """Cosines and sines may be one tensor."""
    x, table = draw((1, 2, 3, 4), dtypes.f32), draw((5, 2), dtypes.f32)
    positions = np.array([[4, 2]])
    one = Tensor.from_numpy(table)
    actual = run(ops.rope, Tensor.from_numpy(x), Tensor.from_numpy(positions), one, one)
    close(ops.rope, rope(x, positions, table, table, interleaved=False), actual)


@given(
    sizes=st.tuples(*[st.integers(0, 4)] * 3),
    dim=st.integers(0, 9),
    data=st.data(),
    dtype=st.sampled_from(FLOATS),
    interleaved=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_sizes(run, draw, close, sizes, dim, data, dtype, interleaved):
    """Any sizes agree with the definition."""
    x = draw((*sizes, dim), dtype)
    cos, sin = tables(11, data.draw(st.integers(0, dim // 2)))
    positions = np.random.default_rng(1).integers(0, 11, sizes[:2])
    actual = rotated(run, x, positions, cos, sin, interleaved)
    close(ops.rope, rope(x, positions, cos, sin, interleaved), actual)


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@both_pairings
def test_positions_outside_the_tables(wrong, index, interleaved):
    """A position outside is an error that names it, and nothing is written."""
    x = Tensor.from_numpy(np.ones((1, 2, 1, 4), np.float32))
    out = Tensor.from_numpy(np.full((1, 2, 1, 4), 7, np.float32))
    positions = Tensor.from_numpy(np.array([[0, wrong]], index))
    cos, sin = map(Tensor.from_numpy, tables(4, 2))
    message = rf"rope: position {wrong} is outside the tables, which has 4 rows \(0 to 3\)"
    with pytest.raises(OpError, match=message):
        ops.rope.into(out, x, positions, cos, sin, interleaved=interleaved)
    assert (out.numpy() == 7).all()


@pytest.mark.parametrize(
    ("x", "positions", "cos", "sin"),
    [
        ((1, 2, 4), (1, 2), (5, 2), (5, 2)),
        ((1, 2, 1, 4), (2,), (5, 2), (5, 2)),
        ((1, 2, 1, 4), (1, 2), (5, 2), (4, 2)),
        ((1, 2, 1, 4), (1, 2), (5, 3), (5, 3)),
        ((1, 2, 1, 4), (1, 2), (2,), (2,)),
    ],
)
def test_shape_errors(x, positions, cos, sin):
    """Shapes that do not fit are an error that gives the rule and all four."""
    floats = [Tensor.from_numpy(np.ones(s, np.float32)) for s in (x, cos, sin)]
    indices = Tensor.from_numpy(np.zeros(positions, np.int32))
    with pytest.raises(ShapeError, match=r"rope: x is \(batch.*; got x \(.*, sin \("):
        ops.rope(floats[0], indices, *floats[1:])


def test_dtype_errors():
    """Integers, tables of two dtypes and unsigned positions are errors."""
    x = Tensor.from_numpy(np.ones((1, 1, 1, 4), np.float32))
    at = Tensor.from_numpy(np.zeros((1, 1), np.int32))
    cos, sin = map(Tensor.from_numpy, tables(2, 2))
    with pytest.raises(DTypeError, match=r"rope: cos is f32, sin is f64; they must"):
        ops.rope(x, at, cos, Tensor.from_numpy(np.ones((2, 2))))
    whole = Tensor.from_numpy(np.ones((1, 1, 1, 4), np.int32))
    with pytest.raises(DTypeError, match=r"rope: x is i32; supported: f64, f32, f16, bf16, f8"):
        ops.rope(whole, at, cos, sin)
    short = Tensor.from_numpy(np.zeros((1, 1), np.uint32))
    with pytest.raises(DTypeError, match=r"rope: positions is u32; supported: i32, i64"):
        ops.rope(x, short, cos, sin)
