"""Quotients, powers, comparisons and choices against f64, and integers against Python's."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
INTEGERS = [d for d in PLAIN if d.is_integer]
COMPARISONS = {
    ops.eq: operator.eq,
    ops.ne: operator.ne,
    ops.lt: operator.lt,
    ops.le: operator.le,
    ops.gt: operator.gt,
    ops.ge: operator.ge,
}
EXTREMES = {ops.maximum: np.maximum, ops.minimum: np.minimum}
SHAPES = [((), ()), ((), (3,)), ((0,), (1,)), ((2, 0, 3), (1, 3)), ((4, 1), (1, 5)), ((2, 3), (3,))]

every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
every_integer = pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
every_comparison = pytest.mark.parametrize("op", COMPARISONS, ids=lambda op: op.name)
every_extreme = pytest.mark.parametrize("op", EXTREMES, ids=lambda op: op.name)
every_op = pytest.mark.parametrize(
    "op", [ops.div, ops.pow, *EXTREMES, *COMPARISONS], ids=lambda op: op.name
)


def ends(dtype):
    """Integers at and near the ends of the range, and small ones, each with each."""
    info = np.iinfo(dtype.numpy)
    numbers = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, info.max // 2]
    numbers += [] if info.min == 0 else [-1, -2, -3, -7]
    a, b = np.meshgrid(np.array(numbers, dtype.numpy), np.array(numbers, dtype.numpy))
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def wrapped(number, dtype):
    """A Python integer modulo the width of the dtype."""
    span, top = 2 ** (8 * dtype.block_bytes), int(np.iinfo(dtype.numpy).max)
    return number % span - span if number % span > top else number % span


def quotient(a, b):
    """``a / b`` toward zero; by zero 0."""
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(a, b, dtype):
    """``a ** b`` modulo the width; to a negative power 0, save for 1 and -1."""
    if b >= 0:
        return pow(a, b, 2 ** (8 * dtype.block_bytes))
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def exactly(expected, actual):
    """The same numbers; NaN equals NaN."""
    with np.errstate(invalid="ignore"):
        actual = actual.astype(np.float64)
    np.testing.assert_array_equal(actual, expected)


def wide(*arrays):
    """Each in f64; signalling NaNs too."""
    with np.errstate(invalid="ignore"):
        return [a.astype(np.float64) for a in arrays]


def pairs_of_bits(dtype):
    """Two arrays of any bit patterns."""
    size = dtype.block_bytes
    raw = np.random.default_rng(7).integers(0, 2 ** (8 * size), (2, 20000), f"u{size}")
    special = np.array([0.0, -0.0, np.nan, 1.0, -1.0, np.inf, -np.inf]).astype(dtype.numpy)
    a, b = np.meshgrid(special, special)
    left, right = raw.view(dtype.numpy)
    return np.concatenate([left, a.reshape(-1)]), np.concatenate([right, b.reshape(-1)])


@every_float
def test_quotients_of_any_bits(run, nearest, close, dtype):
    """Quotients are rounded once, denormals, infinities and NaNs among them."""
    a, b = pairs_of_bits(dtype)
    x, y = wide(a, b)
    with np.errstate(all="ignore"):
        truth = x / y
    actual = run(ops.div, *map(Tensor.from_numpy, (a, b)))
    close(ops.div, nearest(truth, dtype), actual)


@every_integer
def test_quotients_of_integers(run, dtype):
    """Toward zero; by zero 0; the minimum by -1 wraps around; 0-d too."""
    a, b = ends(dtype)
    expected = [
        wrapped(quotient(int(m), int(n)), dtype) for m, n in zip(a.flat, b.flat, strict=True)
    ]
    actual = run(ops.div, *map(Tensor.from_numpy, (a, b)))
    assert expected == actual.reshape(-1).tolist()
    for m, n in ((a.flat[0], a.flat[3]), (a.flat[2], a.flat[4])):
        scalars = [Tensor.from_numpy(np.array(v)) for v in (m, n)]
        expected = wrapped(quotient(int(m), int(n)), dtype)
        assert expected == run(ops.div, *scalars).item()


@every_float
def test_powers(run, draw, close, dtype):
    """Powers of positive numbers, and of negative ones to whole powers."""
    a = np.abs(draw((9, 11), dtype, 1)) + np.asarray(0.25, dtype.numpy)
    b = draw((11,), dtype, 2)
    x, y = wide(a, b)
    close(ops.pow, x**y, run(ops.pow, *map(Tensor.from_numpy, (a, b))))
    negative, whole = -a[:, :3], np.array([0, 1, 3], dtype.numpy)
    x, y = wide(negative, whole)
    close(ops.pow, x**y, run(ops.pow, *map(Tensor.from_numpy, (negative, whole))))


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16], ids=repr)
def test_powers_at_the_ends(run, dtype):
    """Zeros, infinities and NaN follow C's pow: 1 to any power is 1, anything to 0 is 1."""
    values = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0], dtype.numpy)
    a, b = (np.ascontiguousarray(m) for m in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = np.power(*wide(a, b))
    exactly(expected, run(ops.pow, *map(Tensor.from_numpy, (a, b))))


@every_integer
def test_powers_of_integers(run, dtype):
    """Integers wrap around; to a negative power they are 0, save for 1 and -1; 0-d too."""
    a, b = ends(dtype)
    expected = [
        wrapped(power(int(m), int(n), dtype), dtype) for m, n in zip(a.flat, b.flat, strict=True)
    ]
    assert expected == run(ops.pow, *map(Tensor.from_numpy, (a, b))).reshape(-1).tolist()
    scalar = Tensor.from_numpy(np.array(3, dtype.numpy))
    assert 27 == run(ops.pow, scalar, scalar).item()


@every_extreme
@every_dtype
def test_extremes(run, lay, draw, how, op, dtype):
    """The larger and the smaller of every dtype in every layout."""
    a, b = lay(draw((3, 4, 5), dtype, 1), how), lay(draw((3, 4, 5), dtype, 2), how)
    expected = EXTREMES[op](*wide(a.numpy(), b.numpy()))
    exactly(expected, run(op, a, b))


@every_extreme
@every_float
def test_extremes_of_any_bits(run, op, dtype):
    """Where either is NaN so is the result, for every bit pattern."""
    a, b = pairs_of_bits(dtype)
    exactly(EXTREMES[op](*wide(a, b)), run(op, *map(Tensor.from_numpy, (a, b))))


@every_comparison
@every_float
def test_comparisons_of_any_bits(run, op, dtype):
    """1 where it holds and 0 elsewhere; NaN compares with nothing, and differs from all."""
    a, b = pairs_of_bits(dtype)
    expected = COMPARISONS[op](*wide(a, b))
    for x, y in ((a, b), (a, a)):
        expected = COMPARISONS[op](*wide(x, y))
        actual = run(op, *map(Tensor.from_numpy, (x, y)))
        assert actual.dtype == np.uint8
        np.testing.assert_array_equal(expected.astype(np.uint8), actual)


@every_comparison
@every_integer
def test_comparisons_of_integers(run, op, dtype):
    """Neighbours at the ends of the range are told apart, which floats could not."""
    a, b = ends(dtype)
    expected = [int(COMPARISONS[op](int(m), int(n))) for m, n in zip(a.flat, b.flat, strict=True)]
    assert expected == run(op, *map(Tensor.from_numpy, (a, b))).reshape(-1).tolist()


@every_op
def test_layouts(run, lay, draw, how, op):
    """Elements may lie anywhere."""
    for dtype in (dtypes.f16, dtypes.i32):
        arrays = [np.abs(draw((3, 4, 5), dtype, seed)) for seed in (1, 2)]
        a, b = (lay(array, how) for array in arrays)
        plain = [Tensor.from_numpy(t.numpy().copy()) for t in (a, b)]
        np.testing.assert_array_equal(run(op, *plain), run(op, a, b))


@every_op
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_broadcasting(run, draw, op, left, right):
    """Shapes broadcast by numpy's rule, to tensors without elements too."""
    for dtype in (dtypes.f32, dtypes.i64):
        a, b = np.abs(draw(left, dtype, 1)), np.abs(draw(right, dtype, 2))
        shape = np.broadcast_shapes(left, right)
        whole = [np.ascontiguousarray(np.broadcast_to(v, shape)) for v in (a, b)]
        expected = run(op, *map(Tensor.from_numpy, whole))
        actual = run(op, *(Tensor.from_numpy(np.asarray(v)) for v in (a, b)))
        assert shape == actual.shape
        np.testing.assert_array_equal(expected, actual)


@every_op
def test_errors(op):
    """Mixed dtypes, shapes that do not fit and block formats are errors that name the op."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32))
    with pytest.raises(DTypeError, match=rf"{op.name}: a is f32, b is f64; .*ops.cast"):
        op(x, Tensor.from_numpy(np.ones((2, 3))))
    with pytest.raises(ShapeError, match=rf"{op.name}: shapes \(2, 3\) and \(2,\) do not"):
        op(x, Tensor.from_numpy(np.ones(2, np.float32)))
    blocks = Tensor.from_blocks(np.zeros(36, np.uint8), dtypes.q4_0, (2, 32))
    with pytest.raises(DTypeError, match=rf"{op.name}: a is q4_0; supported: f64, f32, f16, bf16"):
        op(blocks, blocks)


@every_dtype
@pytest.mark.parametrize("kind", INTEGERS, ids=repr)
def test_where(run, draw, dtype, kind):
    """Every dtype is chosen bit for bit by a condition of every integer dtype."""
    condition = np.array([0, 1, 2, 0, 100, 0, 1], kind.numpy)
    if kind.kind == "int":
        condition[1] = -1
    a, b = draw((4, 7), dtype, 1), draw((4, 7), dtype, 2)
    if dtype.is_float:
        a[0], b[1] = np.nan, np.nan
    expected = a.copy()
    for index in np.ndindex(a.shape):
        expected[index] = a[index] if int(condition[index[1]]) else b[index]
    actual = run(ops.where, *map(Tensor.from_numpy, (condition, a, b)))
    assert expected.tobytes() == actual.tobytes()


def test_where_layouts(run, lay, draw, how):
    """Condition and both sources may lie anywhere."""
    condition = lay((draw((3, 4, 5), dtypes.f32, 0) > 0).astype(np.uint8), how)
    a, b = (lay(draw((3, 4, 5), dtypes.bf16, seed), how) for seed in (1, 2))
    expected = np.where(condition.numpy() != 0, a.numpy(), b.numpy())
    assert expected.tobytes() == run(ops.where, condition, a, b).tobytes()


@pytest.mark.parametrize("shapes", [((), (), ()), ((0,), (1,), ()), ((3, 1), (4,), (2, 1, 1))])
def test_where_broadcasts(run, draw, shapes):
    """All three broadcast."""
    condition = np.asarray(draw(shapes[0], dtypes.i16, 0) > 0).astype(np.uint8)
    a, b = (np.asarray(draw(s, dtypes.i64, 1)) for s in shapes[1:])
    actual = run(ops.where, *map(Tensor.from_numpy, (condition, a, b)))
    assert np.broadcast_shapes(*shapes) == actual.shape
    np.testing.assert_array_equal(np.where(condition != 0, a, b), actual)


def test_where_errors():
    """A float condition, mixed dtypes and shapes that do not fit are errors."""
    x, whole = (Tensor.from_numpy(np.ones(3, d)) for d in (np.float32, np.int32))
    with pytest.raises(DTypeError, match=r"where: condition is f32; supported: u8, u32, i8, i16"):
        ops.where(x, x, x)
    with pytest.raises(DTypeError, match=r"where: a is f32, b is i32; .*ops.cast"):
        ops.where(whole, x, whole)
    with pytest.raises(ShapeError, match=r"where: shapes \(2,\) and \(3,\) do not broadcast"):
        ops.where(Tensor.from_numpy(np.ones(2, np.uint8)), x, x)
