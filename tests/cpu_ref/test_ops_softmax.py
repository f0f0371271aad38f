"""softmax against its definition in f64."""

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


def softmax(x, dim=-1):
    """``exp(x) / sum(exp(x))`` in f64, shifted so that nothing overflows."""
    x = x.astype(np.float64)
    if x.size == 0:
        return x
    with np.errstate(all="ignore"):
        grown = np.exp(x - x.max(axis=dim, keepdims=True))
        return grown / grown.sum(axis=dim, keepdims=True)


@every_float
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_layouts(run, lay, draw, close, how, dtype, dim):
    """Every float dtype in every layout gives the definition's values along every dimension."""
    x = lay(draw((3, 4, 5), dtype, 1, 3.0), how)
    close(ops.softmax, softmax(x.numpy(), dim), run(ops.softmax, x, dim))


@every_float
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((1,), 0), ((0,), 0), ((3, 0), 0), ((3, 0), 1), ((0, 3), 1), ((1, 129), -1), ((5, 1), -1)],
)
def test_shapes(run, draw, close, dtype, shape, dim):
    """Tensors without elements and of one element work; along a size of 1 all is 1."""
    x = draw(shape, dtype)
    actual = run(ops.softmax, Tensor.from_numpy(x), dim=dim)
    close(ops.softmax, softmax(x, dim), actual)
    if shape[dim] == 1:
        assert (actual == 1).all()


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16], ids=repr)
def test_ieee(run, same, dtype):
    """Rows with NaN or +inf, and rows of -inf throughout, are NaN; -inf among others is 0."""
    inf, nan = np.inf, np.nan
    x = [[1, nan, 0], [inf, 0, 1], [-inf, -inf, -inf], [-inf, 5, -inf], [60000, -60000, 0]]
    expected = [[nan] * 3, [nan] * 3, [nan] * 3, [0, 1, 0], [1, 0, 0]]
    same(expected, run(ops.softmax, Tensor.from_numpy(np.array(x, dtype.numpy))))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=repr)
def test_large_numbers(run, close, dtype):
    """Numbers whose exponential overflows are shifted first."""
    x = np.array([[1e30, 1e30, 0], [-1e30, -1e30, -1e30], [1000, 999, 998]], dtype.numpy)
    close(ops.softmax, softmax(x), run(ops.softmax, Tensor.from_numpy(x)))


@pytest.mark.parametrize("dim", [0, 1])
def test_long_sums(run, close, dim):
    """A sum over a whole vocabulary is as exact as the tolerance asks, along either dimension."""
    x = np.random.default_rng(6).random((100_001, 2), np.float32)
    x = x if dim == 0 else np.ascontiguousarray(x.T)
    # No absolute slack: each probability is about as small as it.
    actual = run(ops.softmax, Tensor.from_numpy(x), dim)
    close(ops.softmax, softmax(x, dim), actual, (ops.softmax.tolerance[dtypes.f32].rtol, 0.0))


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    data=st.data(),
    dtype=st.sampled_from(FLOATS),
)
@settings(max_examples=50, deadline=None)
def test_any_shapes(run, draw, close, shape, data, dtype):
    """Any shape agrees with the definition along any dimension."""
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = draw(shape, dtype, 3)
    close(ops.softmax, softmax(x, dim), run(ops.softmax, Tensor.from_numpy(x), dim))


@pytest.mark.parametrize(("shape", "dim"), [((), -1), ((), 0), ((3,), 1), ((2, 3), -3)])
def test_missing_dimensions(shape, dim):
    """A dimension that is not there is an error that gives the rank."""
    x = Tensor.from_numpy(np.ones(shape, np.float32))
    with pytest.raises(ShapeError, match=rf"softmax: dimension {dim} .* rank {len(shape)}"):
        ops.softmax(x, dim)


def test_other_errors():
    """Integers and numbers are errors that say what is supported."""
    with pytest.raises(DTypeError, match=r"softmax: x is i64; supported: f64, f32, f16, bf16, f8"):
        ops.softmax(Tensor.from_numpy(np.ones(3, np.int64)))
    with pytest.raises(OpError, match=r"softmax: x is a float, not a Tensor: Tensor.from_numpy"):
        ops.softmax(1.5)


def log_softmax(x, dim=-1):
    """The logarithm of the sum is taken off, in f64, shifted so that nothing overflows."""
    x = x.astype(np.float64)
    if x.size == 0:
        return x
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis=dim, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True))


@every_float
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_log_softmax(run, lay, draw, close, how, dtype, dim):
    """Every float dtype in every layout gives the definition's values along every dimension."""
    x = lay(draw((3, 4, 5), dtype, 1, 3.0), how)
    close(ops.log_softmax, log_softmax(x.numpy(), dim), run(ops.log_softmax, x, dim))


@every_float
@pytest.mark.parametrize(("shape", "dim"), [((1,), 0), ((0,), 0), ((3, 0), 1), ((0, 3), 1)])
def test_log_softmax_shapes(run, draw, close, dtype, shape, dim):
    """Tensors without elements and of one element work."""
    x = draw(shape, dtype)
    close(ops.log_softmax, log_softmax(x, dim), run(ops.log_softmax, Tensor.from_numpy(x), dim))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16], ids=repr)
def test_log_softmax_ieee(run, same, dtype):
    """What cannot be is -inf, however large the others are; NaN and +inf make a row NaN."""
    inf, nan = np.inf, np.nan
    x = [[1, nan, 0], [inf, 0, 1], [-inf] * 3, [-inf, 5, -inf], [60416, -4096, 0]]
    expected = [[nan] * 3, [nan] * 3, [nan] * 3, [-inf, 0, -inf], [0, -64512, -60416]]
    same(expected, run(ops.log_softmax, Tensor.from_numpy(np.array(x, dtype.numpy))))


def test_log_softmax_errors():
    """A missing dimension and integers are errors that name the op."""
    with pytest.raises(ShapeError, match=r"log_softmax: dimension 1 .* rank 1"):
        ops.log_softmax(Tensor.from_numpy(np.ones(3)), 1)
    with pytest.raises(DTypeError, match=r"log_softmax: x is i32; supported: f64"):
        ops.log_softmax(Tensor.from_numpy(np.ones(3, np.int32)))
