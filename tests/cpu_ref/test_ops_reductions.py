"""Sums, means, variances, extremes and running sums against f64, and integers against Python."""

from __future__ import annotations

import functools
import math

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
NUMPY = {
    ops.sum: np.sum,
    ops.prod: np.prod,
    ops.mean: np.mean,
    ops.var: np.var,
    ops.min: np.min,
    ops.max: np.max,
}
DIMS = [None, (), 0, -1, (0, 2), (2, 1), (0, 1, 2), (-1, -3)]

every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
every_integer = pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
every_op = pytest.mark.parametrize("op", NUMPY, ids=lambda op: op.name)


def truth(op, x, dims, **kwargs):
    """The definition in f64; no dimensions means every element for itself."""
    axes = dims if dims is None else tuple(np.atleast_1d(np.array(dims, int)).tolist())
    return np.asarray(NUMPY[op](x.astype(np.float64), axis=axes, **kwargs))


@every_op
@every_float
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_floats(run, draw, close, op, dtype, dims, keepdim):
    """Every float dtype over any dimensions, kept or dropped."""
    x = draw((3, 4, 5), dtype, 1)
    actual = run(op, Tensor.from_numpy(x), dims, keepdim=keepdim)
    close(op, truth(op, x, dims, keepdims=keepdim), actual)


@every_op
def test_layouts(run, lay, draw, close, how, op):
    """Elements may lie anywhere."""
    for dtype in (dtypes.f32, dtypes.bf16):
        x = lay(draw((3, 4, 5), dtype, 1), how)
        for dims in (None, 0, (1, 2)):
            close(op, truth(op, x.numpy(), dims), run(op, x, dims=dims))


@every_integer
@pytest.mark.parametrize("dims", [None, (), 0, (0, 2)])
def test_integers(run, draw, dtype, dims):
    """Sums of integers wrap around; the smallest and largest are exact."""
    info = np.iinfo(dtype.numpy)
    x = draw((3, 4, 5), dtype, 1)
    x[0, 0], x[1, 1] = info.max, info.min
    big = x.astype(object)
    axes = tuple(range(3)) if dims is None else tuple(np.atleast_1d(np.array(dims, int)).tolist())
    for op, fold in ((ops.sum, lambda a, b: a + b), (ops.min, min), (ops.max, max)):
        folded = big
        for axis in sorted(axes, reverse=True):
            folded = functools.reduce(
                np.vectorize(fold, otypes=[object]), np.moveaxis(folded, axis, 0)
            )
        span = 2 ** (8 * dtype.block_bytes)
        expected = [n % span for n in np.asarray(folded, object).reshape(-1)]
        actual = run(op, Tensor.from_numpy(x), dims)
        assert np.shape(folded) == actual.shape
        assert expected == [int(n) % span for n in actual.reshape(-1)]


@every_dtype
def test_scalars(run, same, dtype):
    """A tensor without dimensions reduces to itself; of one number the variance is 0."""
    x = Tensor.from_numpy(np.array(3, dtype.numpy))
    for op in (ops.sum, ops.min, ops.max):
        for dims in (None, ()):
            same(3.0, run(op, x, dims))
    if dtype.is_float:
        same(3.0, run(ops.mean, x))
        same(0.0, run(ops.var, x))
        same(np.nan, run(ops.var, x, correction=1))


@every_dtype
def test_empty(run, same, dtype):
    """The sum of nothing is 0 and its mean NaN; the smallest of nothing is an error."""
    x = Tensor.from_numpy(np.empty((3, 0, 2), dtype.numpy))
    same(np.zeros((3, 2)), run(ops.sum, x, 1))
    same(0.0, run(ops.sum, x))
    same(np.empty((0, 2)), run(ops.sum, x, 0))
    assert (0, 2) == run(ops.max, x, 0).shape
    for op in (ops.min, ops.max):
        for dims in (1, None, (0, 1)):
            with pytest.raises(ShapeError, match=rf"{op.name}: no elements to choose from in dim"):
                op(x, dims)
    if dtype.is_float:
        for op in (ops.mean, ops.var):
            same(np.full((3, 2), np.nan), run(op, x, 1))
            same(np.nan, run(op, x))


@every_float
@pytest.mark.parametrize("correction", [0, 1, 3, 5, 6])
def test_corrections(run, draw, close, dtype, correction):
    """The divisor is n - correction, and the variance NaN where that is not positive."""
    x = draw((3, 5), dtype, 2)
    with np.errstate(all="ignore"):
        squares = np.square(x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True))
        expected = squares.sum(axis=1) / (5 - correction)
    expected = np.full(3, np.nan) if correction >= 5 else expected
    close(ops.var, expected, run(ops.var, Tensor.from_numpy(x), 1, correction=correction))


@every_float
def test_nan_and_infinities(run, same, dtype):
    """One NaN makes every reduction NaN; infinities add up as IEEE says."""
    x = np.array([[1, np.nan, 2], [np.inf, 1, 2], [np.inf, -np.inf, 0]]).astype(dtype.numpy)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        for op in (ops.sum, ops.mean, ops.min, ops.max):
            same(NUMPY[op](wide, axis=1), run(op, Tensor.from_numpy(x), 1))
        same([np.nan] * 3, run(ops.var, Tensor.from_numpy(x), 1))


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f8e4m3], ids=repr)
def test_sums_are_wide(run, dtype):
    """Sums of narrow floats do not stall or overflow on the way: they are in f32."""
    ones = Tensor.from_numpy(np.ones((3, 256), dtype.numpy))
    assert (run(ops.sum, ones, 1) == 256).all()
    large = np.array([[400, 400, -400, -400, 1]]).astype(dtype.numpy)
    large = large if dtype is dtypes.f8e4m3 else large * dtype.numpy.type(100)
    assert float(large[0, -1]) == run(ops.sum, Tensor.from_numpy(large), 1).astype(np.float64)[0]
    assert float(run(ops.mean, ones)) == 1
    assert float(run(ops.cumsum, ones).astype(np.float64)[0, -1]) == 256


@pytest.mark.parametrize("dim", [0, 1])
def test_long_sums(run, close, dim):
    """Hundreds of thousands of elements add up within the tolerance along any dimension."""
    x = np.random.default_rng(1).uniform(0, 1, (300_000, 2)).astype(np.float32)
    x = np.ascontiguousarray(x.T) if dim else x
    for op in (ops.sum, ops.mean, ops.var):
        close(op, truth(op, x, dim), op(Tensor.from_numpy(x), dim).numpy())
    running = ops.cumsum(Tensor.from_numpy(x), dim).numpy()
    close(ops.cumsum, np.cumsum(x.astype(np.float64), axis=dim), running)


def test_variance_far_from_zero(run, close):
    """The mean is taken off first: squares of large numbers do not swallow the difference."""
    x = np.array([1e6 + 1, 1e6 - 1, 1e6 + 1, 1e6 - 1], np.float32)
    close(ops.var, truth(ops.var, x, None), run(ops.var, Tensor.from_numpy(x)))


@every_dtype
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cumsum(run, lay, draw, close, how, dtype, dim):
    """Running sums along any dimension in any layout; of integers they wrap around."""
    x = lay(draw((3, 4, 5), dtype, 1), how)
    actual = run(ops.cumsum, x, dim)
    if dtype.is_float:
        close(ops.cumsum, np.cumsum(x.numpy().astype(np.float64), axis=dim), actual)
        return
    span = 2 ** (8 * dtype.block_bytes)
    expected = np.cumsum(x.numpy().astype(object), axis=dim) % span
    assert expected.reshape(-1).tolist() == [int(n) % span for n in actual.reshape(-1)]


def test_cumsum_shapes(run, same):
    """No elements have no sums; NaN stays from where it is; 0-d is an error."""
    assert (3, 0) == run(ops.cumsum, Tensor.from_numpy(np.empty((3, 0), np.float16))).shape
    x = np.array([1, np.nan, 2], np.float32)
    same([1, np.nan, np.nan], run(ops.cumsum, Tensor.from_numpy(x)))
    with pytest.raises(ShapeError, match=r"cumsum: dimension -1 .* rank 0"):
        ops.cumsum(Tensor.from_numpy(np.array(1.0)))


def first_smallest(row):
    """The index of the first NaN, or else of the first of the smallest."""
    numbers = [n.item() if row.dtype.kind in "iu" else float(n) for n in row]
    for i, number in enumerate(numbers):
        if isinstance(number, float) and math.isnan(number):
            return i
    return numbers.index(min(numbers))


@every_dtype
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_argmin(run, lay, draw, how, dtype, dim):
    """The first smallest along every dimension, in every layout; NaN is smallest of all."""
    array = draw((3, 4, 5), dtype, 1)
    array[1, 2] = array[1, 1]
    if dtype.is_float:
        array[0, 0, 2:4] = np.nan
    x = lay(array, how)
    rows = np.moveaxis(x.numpy(), dim, -1)
    expected = [first_smallest(rows[index]) for index in np.ndindex(rows.shape[:-1])]
    actual = run(ops.argmin, x, dim)
    assert rows.shape[:-1] == actual.shape
    assert expected == actual.reshape(-1).tolist()


def test_argmin_errors():
    """An empty or missing dimension is an error."""
    with pytest.raises(ShapeError, match=r"argmin: dimension 0 must not be empty; got x \(0,\)"):
        ops.argmin(Tensor.from_numpy(np.empty(0)))
    with pytest.raises(ShapeError, match=r"argmin: dimension -1 .* rank 0"):
        ops.argmin(Tensor.from_numpy(np.array(1.0)))


@every_op
def test_errors(op):
    """Missing and repeated dimensions, block formats, and integers where floats are meant."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32))
    with pytest.raises(ShapeError, match=rf"{op.name}: dimension 2 .* rank 2"):
        op(x, (0, 2))
    with pytest.raises(ShapeError, match=rf"{op.name}: dims \(1, -1\) name a dimension .* twice"):
        op(x, (1, -1))
    blocks = Tensor.from_blocks(np.zeros(34, np.uint8), dtypes.q8_0, (1, 32))
    with pytest.raises(DTypeError, match=rf"{op.name}: x is q8_0; supported: f64"):
        op(blocks)
    if op in (ops.mean, ops.var):
        with pytest.raises(DTypeError, match=rf"{op.name}: x is i32; supported: f64"):
            op(Tensor.from_numpy(np.ones(3, np.int32)))


def test_a_dimension_as_a_number_of_numpy(cpu):
    """It is taken as Python's are."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32), cpu)
    assert ops.sum(x, np.int64(1)).shape == (2,)
    assert ops.mean(x, (np.int32(0), 1)).shape == ()
