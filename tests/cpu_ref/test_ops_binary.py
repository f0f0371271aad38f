"""Sums, differences, products against one rounding of the truth; integers modulo their width."""

from __future__ import annotations

import operator

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


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
INTEGERS = [d for d in PLAIN if d.is_integer]


def remainder(a, b):
    """Python's, of integers by 0 too; of arrays numpy's."""
    if isinstance(a, int):
        return a % b if b else 0
    return np.remainder(a, b)


every_op = pytest.mark.parametrize(
    ("op", "function"),
    [
        (ops.add, operator.add),
        (ops.sub, operator.sub),
        (ops.mul, operator.mul),
        (ops.remainder, remainder),
    ],
    ids=["add", "sub", "mul", "remainder"],
)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
every_integer = pytest.mark.parametrize("dtype", INTEGERS, ids=repr)


def wrapped(function, a, b, dtype):
    """The integer result modulo the width of the dtype, by Python's integers."""
    span, top = 2 ** (8 * dtype.block_bytes), int(np.iinfo(dtype.numpy).max)
    a, b = np.broadcast_arrays(a, b)
    results = [function(int(m), int(n)) % span for m, n in zip(a.flat, b.flat, strict=True)]
    return [n - span if n > top else n for n in results]


def truth(function, a, b):
    """The result in f64, before its one rounding: exact enough not to round twice."""
    with np.errstate(all="ignore"):
        return function(a.astype(np.float64), b.astype(np.float64))


@every_op
@every_float
def test_floats(run, lay, draw, nearest, same, how, op, function, dtype):
    """Every float dtype in every layout gives the exact result, rounded once."""
    a, b = lay(draw((3, 4, 5), dtype, 1), how), lay(draw((3, 4, 5), dtype, 2, 20.0))
    expected = nearest(truth(function, a.numpy(), b.numpy()), dtype)
    same(expected, run(op, a, b))
    swapped = nearest(truth(function, b.numpy(), a.numpy()), dtype)
    same(swapped, run(op, b, a))


@every_op
@every_integer
def test_integers(run, lay, draw, how, op, function, dtype):
    """Every integer dtype in every layout gives the exact result."""
    a, b = lay(draw((3, 4, 5), dtype, 1), how), lay(draw((3, 4, 5), dtype, 2))
    expected = wrapped(function, a.numpy(), b.numpy(), dtype)
    assert expected == run(op, a, b).reshape(-1).tolist()


@every_op
@every_integer
def test_integers_wrap_around(run, op, function, dtype):
    """Beyond the ends of the range integers go on at the other end, even 0-d, without warning."""
    info = np.iinfo(dtype.numpy)
    ends = np.array([info.min, info.max, info.max - 1, info.min + 1, 2, 1, 0], dtype.numpy)
    a, b = ends[:, None], ends[None, :]
    actual = run(op, Tensor.from_numpy(a), Tensor.from_numpy(b))
    assert wrapped(function, a, b, dtype) == actual.reshape(-1).tolist()
    scalar = Tensor.from_numpy(np.array(info.max, dtype.numpy))
    expected = wrapped(function, scalar.numpy(), scalar.numpy(), dtype)
    assert expected == [run(op, scalar, scalar).item()]


@every_op
@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f8e4m3], ids=repr)
def test_all_kinds_of_narrow_floats(run, nearest, same, op, function, dtype):
    """Denormals, huge numbers, infinities and NaNs of the narrow floats act as IEEE says."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2 ** (8 * dtype.block_bytes), (2, 20000))
    a, b = bits.astype(f"u{dtype.block_bytes}").view(dtype.numpy)
    expected = nearest(truth(function, a, b), dtype)
    same(expected, run(op, Tensor.from_numpy(a), Tensor.from_numpy(b)))


@every_op
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=repr)
def test_ieee(run, same, op, function, dtype):
    """Infinity, NaN, overflow and signed zeros come out as IEEE says."""
    largest = float(np.finfo(dtype.numpy).max)
    tiny = float(np.finfo(dtype.numpy).smallest_subnormal)
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, tiny], dtype.numpy)
    a, b = np.meshgrid(values, values)
    with np.errstate(all="ignore"):
        expected = [
            [function(m, n) for m, n in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)
        ]
    same(expected, run(op, Tensor.from_numpy(a), Tensor.from_numpy(b)))


SHAPES = [
    ((), ()),
    ((), (3,)),
    ((1,), (1,)),
    ((0,), (1,)),
    ((0, 3), (3,)),
    ((2, 0, 3), (1, 1, 3)),
    ((4, 1), (1, 5)),
    ((2, 3, 4), (4,)),
    ((2, 1, 4), (3, 1)),
    ((1,), (2, 3, 1)),
    ((129,), (129,)),
]


@every_op
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_broadcasting(run, draw, nearest, same, op, function, left, right):
    """Shapes broadcast by numpy's rule, to tensors without elements too."""
    a, b = draw(left, dtypes.f32, 1), draw(right, dtypes.f32, 2)
    expected = nearest(truth(function, a, b), dtypes.f32)
    actual = run(op, Tensor.from_numpy(a), Tensor.from_numpy(b))
    assert np.broadcast_shapes(left, right) == actual.shape
    same(expected, actual)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_shapes(run, draw, nearest, same, data):
    """Any two shapes that broadcast do so, views with stride 0 among them."""
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4).map(tuple))
    ones = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    left = tuple(1 if one else n for one, n in zip(ones, shape, strict=True))
    right = shape[data.draw(st.integers(0, len(shape))) :]
    a, b = draw(left, dtypes.bf16, 1), draw(right, dtypes.bf16, 2)
    expected = nearest(np.multiply(a.astype(np.float64), b.astype(np.float64)), dtypes.bf16)
    same(expected, run(ops.mul, Tensor.from_numpy(a), Tensor.from_numpy(b)))
    view = Tensor.from_numpy(a).broadcast_to(*shape)
    same(expected, run(ops.mul, view, Tensor.from_numpy(b)))


@every_op
@pytest.mark.parametrize("dtype", PLAIN, ids=repr)
def test_one_tensor_twice(run, draw, op, function, dtype):
    """Both inputs may be one tensor, or two views of one memory."""
    array = draw((5, 5), dtype, 4)
    x = Tensor.from_numpy(array)
    np.testing.assert_array_equal(run(op, x, Tensor.from_numpy(array.copy())), run(op, x, x))
    other = Tensor.from_numpy(array.T.copy())
    np.testing.assert_array_equal(run(op, x, other), run(op, x, x.permute(1, 0)))


@every_op
@pytest.mark.parametrize("dtype", PLAIN, ids=repr)
def test_in_place(run, draw, op, function, dtype):
    """The result may be written over the first input, as the implementations declare."""
    array, b = draw((3, 7), dtype, 1), Tensor.from_numpy(draw((7,), dtype, 2))
    expected = run(op, Tensor.from_numpy(array.copy()), b)
    for second in (b, b.broadcast_to(3, 7)):
        x = Tensor.from_numpy(array.copy())
        assert op.into(x, x, second) is x
        np.testing.assert_array_equal(expected, x.numpy())
    doubled = run(op, Tensor.from_numpy(array.copy()), Tensor.from_numpy(array.copy()))
    x = Tensor.from_numpy(array.copy())
    np.testing.assert_array_equal(doubled, op.into(x, x, x).numpy())


@every_op
def test_errors(op, function):
    """Mixed dtypes, shapes that do not fit and block formats are errors that name the op."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32))
    half = Tensor.from_numpy(np.ones((2, 3), np.float16))
    blocks = Tensor.from_blocks(np.zeros(36, np.uint8), dtypes.q4_0, (2, 32))
    with pytest.raises(DTypeError, match=rf"{op.name}: a is f32, b is f16; .*same dtype.*ops.cast"):
        op(x, half)
    with pytest.raises(ShapeError, match=rf"{op.name}: shapes \(2, 3\) and \(2,\) do not"):
        op(x, Tensor.from_numpy(np.ones(2, np.float32)))
    with pytest.raises(DTypeError, match=rf"{op.name}: a is q4_0; supported: f64, f32, f16, bf16"):
        op(blocks, blocks)
    with pytest.raises(OpError, match=rf"{op.name}: the result is f32 of shape \(2, 3\), out is"):
        op.into(half, x, x)
    with pytest.raises(OpError, match=rf"{op.name}: b is a int, not a Tensor"):
        op(x, 2)
    with pytest.raises(OpError, match=rf"{op.name}.*b"):
        op(x)
