"""fill, full, arange, assign and cat against values made one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
INTEGERS = [d for d in PLAIN if d.is_integer]
PLACES = ["contiguous", "permuted", "offset", "step", "gaps"]
every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
every_place = pytest.mark.parametrize("place", PLACES)


@every_dtype
@every_place
def test_fill(change, same, dtype, place):
    """Every element of a view is set, and nothing beside it."""
    x = np.ones((3, 4, 5), dtype.numpy)
    same(7.0, change(ops.fill, x, 7, how=place))
    same(2.0 if dtype.is_integer else 2.5, change(ops.fill, x, value=2.5, how=place))


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize(
    "value", [0.1, -0.0, 1e300, -1e300, 1e-300, math.inf, math.nan, 1 + 2.0**-8 + 2.0**-40, 3]
)
def test_fill_of_floats(change, nearest, same, dtype, value):
    """The value is rounded once, to infinity (f8: NaN) where it is too large."""
    expected = nearest(np.array(value, np.float64), dtype)
    same(expected, change(ops.fill, np.ones((2, 3), dtype.numpy), value))


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_fill_of_integers(change, dtype):
    """Fractions are truncated, what is outside saturates, NaN is 0; large integers are exact."""
    info = np.iinfo(dtype.numpy)
    x = np.ones(3, dtype.numpy)
    lowest, largest = int(info.min), int(info.max)
    for value, expected in (
        (2.9, 2), (math.nan, 0), (math.inf, largest), (-math.inf, lowest),
        (1e30, largest), (-1e30, lowest), (largest - 1, largest - 1), (10**30, largest),
        (-(10**30), lowest), (True, 1),
    ):  # fmt: skip
        assert [expected] * 3 == change(ops.fill, x, value).tolist()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_fill_shapes(change, shape):
    """Tensors without dimensions and without elements are filled too."""
    assert (change(ops.fill, np.ones(shape, np.float32), 4) == 4).all()


@every_dtype
def test_full(cpu, dtype):
    """A new tensor of one value."""
    x = ops.full((2, 3), 5, dtype, cpu)
    assert ((2, 3), dtype) == (x.shape, x.dtype)
    assert (x.numpy() == 5).all()


@every_dtype
@every_place
def test_arange(change, nearest, same, dtype, place):
    """Start and step in row-major order, in any view."""
    x = np.ones((2, 3, 4), dtype.numpy)
    expected = 3 + 2.0 * np.arange(24).reshape(2, 3, 4)
    same(
        nearest(expected, dtype) if dtype.is_float else expected,
        change(ops.arange, x, 3, 2, how=place),
    )
    same(
        nearest(expected / 2 - 1.5, dtype) if dtype.is_float else expected,
        change(
            ops.arange,
            x,
            **({"start": 0.0, "step": 1.0} if dtype.is_float else {"start": 3.0, "step": 2}),
            how=place,
        ),
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize(("start", "step"), [(0.5, 0.1), (-3, -0.25), (1e30, 1.0), (0, 0)])
def test_arange_of_floats(change, close, dtype, start, step):
    """Each element is rounded once from start + i * step."""
    truth = start + np.arange(50) * step
    close(ops.arange, truth, change(ops.arange, np.ones(50, dtype.numpy), start, step))


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
@pytest.mark.parametrize(
    ("start", "step"), [(0, 1), (100, 100), (-3, -7), (2**62, 2**61), (2**64 + 5, 1), (1e20, -1)]
)
def test_arange_of_integers(change, dtype, start, step):
    """Integers wrap around, whatever start and step are."""
    span, top = 2 ** (8 * dtype.block_bytes), int(np.iinfo(dtype.numpy).max)
    numbers = [(int(start) + i * step) % span for i in range(9)]
    expected = [n - span if n > top else n for n in numbers]
    assert expected == change(ops.arange, np.ones(9, dtype.numpy), start, step).tolist()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_arange_shapes(change, shape):
    """A tensor without dimensions holds the start."""
    assert (change(ops.arange, np.ones(shape, np.int32), 4) == 4).all()


@pytest.mark.parametrize(
    "bad", [{"start": 0.5}, {"step": 1.5}, {"start": math.inf}, {"step": math.nan}]
)
def test_arange_errors(bad):
    """Integers have no fractions: an error, and nothing is written."""
    x = Tensor.from_numpy(np.full(3, 7, np.int32))
    with pytest.raises(
        OpError, match=r"arange: start .* and step .* must be whole numbers for i32"
    ):
        ops.arange(x, **bad)
    assert [7, 7, 7] == x.numpy().tolist()


@every_dtype
@every_place
def test_assign(change, lay, draw, how, dtype, place):
    """Elements of every dtype go into a view, from anywhere, bit for bit."""
    source = lay(draw((3, 4, 5), dtype, 1), how)
    actual = change(ops.assign, draw((3, 4, 5), dtype, 2), source, how=place)
    assert source.numpy().tobytes() == actual.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1), (1, 3, 4), (3, 4)])
def test_assign_broadcasts(change, draw, shape):
    """A source may be repeated."""
    if len(shape) > 2:
        with pytest.raises(ShapeError, match=r"does not broadcast to \(3, 4\)"):
            change(
                ops.assign,
                np.ones((3, 4), np.float32),
                Tensor.from_numpy(np.ones(shape, np.float32)),
            )
        return
    source = np.asarray(draw(shape, dtypes.f32))
    actual = change(ops.assign, np.ones((3, 4), np.float32), Tensor.from_numpy(source))
    np.testing.assert_array_equal(np.broadcast_to(source, (3, 4)), actual)
    empty = np.empty((0, 4), np.float32)
    assert change(ops.assign, empty, Tensor.from_numpy(np.ones((1, 4), np.float32))).size == 0


def test_assign_of_overlapping_views():
    """Source and target may overlap: the source is read as it was."""
    array = np.arange(8, dtype=np.int32)
    x = Tensor.from_numpy(array)
    ops.assign(x.narrow(0, 1, 7), x.narrow(0, 0, 7))
    assert [0, 0, 1, 2, 3, 4, 5, 6] == x.numpy().tolist()
    ops.assign(x.narrow(0, 0, 7), x.narrow(0, 1, 7))
    assert [0, 1, 2, 3, 4, 5, 6, 6] == x.numpy().tolist()
    square = Tensor.from_numpy(np.arange(9, dtype=np.float64).reshape(3, 3))
    ops.assign(square, square.permute(1, 0))
    np.testing.assert_array_equal(np.arange(9).reshape(3, 3).T, square.numpy())


def test_assign_errors():
    """Mixed dtypes and shapes that do not fit are errors."""
    x, half = (Tensor.from_numpy(np.ones((3, 4), d)) for d in (np.float32, np.float16))
    with pytest.raises(DTypeError, match=r"assign: target is f32, source is f16"):
        ops.assign(x, half)
    with pytest.raises(ShapeError, match=r"shape \(3, 4\) does not broadcast to \(3, 2\)"):
        ops.assign(x.narrow(1, 0, 2), x)


@every_dtype
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(lay, draw, how, dtype, dim):
    """Tensors of any layout are joined along any dimension, bit for bit."""
    arrays = [draw((2, 3, 4), dtype, seed) for seed in (1, 2, 3)]
    parts = [lay(a, how) for a in arrays]
    parts.append(parts[0].narrow(dim, 1, 1))
    expected = np.concatenate([p.numpy() for p in parts], axis=dim)
    actual = ops.cat(parts, dim)
    assert (expected.shape, dtype) == (actual.shape, actual.dtype)
    assert expected.tobytes() == actual.numpy().tobytes()


def test_cat_of_little(draw):
    """One tensor gives a copy, tensors without elements nothing."""
    x = Tensor.from_numpy(draw((2, 3), dtypes.f32))
    one = ops.cat([x])
    assert one.storage is not x.storage
    np.testing.assert_array_equal(x.numpy(), one.numpy())
    empty = x.narrow(0, 0, 0)
    np.testing.assert_array_equal(x.numpy(), ops.cat((empty, x, empty)).numpy())
    assert (2, 0) == ops.cat([x.narrow(1, 0, 0)] * 2, 1).shape


def test_cat_errors():
    """Nothing to join, mixed dtypes, other shapes and missing dimensions are errors."""
    x, half = (Tensor.from_numpy(np.ones((3, 4), d)) for d in (np.float32, np.float16))
    with pytest.raises(ShapeError, match=r"cat: give at least one tensor"):
        ops.cat([])
    with pytest.raises(DTypeError, match=r"cat: first is f32, other is f16"):
        ops.cat([x, half])
    for other in (x.narrow(1, 0, 2), Tensor.from_numpy(np.ones(4, np.float32))):
        with pytest.raises(ShapeError, match=r"cat: shapes agree but for dimension 0; got first"):
            ops.cat([x, other])
    with pytest.raises(ShapeError, match=r"cat: dimension 2 .* rank 2"):
        ops.cat([x], 2)
    scalar = Tensor.from_numpy(np.array(1.0))
    with pytest.raises(ShapeError, match=r"cat: dimension 0 .* rank 0"):
        ops.cat([scalar])


@pytest.mark.parametrize("other", [None, np.ones((2, 3), np.float32), "ab"], ids=repr)
def test_cat_of_no_tensor(other):
    """It is named, and how a tensor is made."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32))
    assert ops.cat(one for one in (x, x)).shape == (4, 3)
    with pytest.raises(
        OpError, match=r"cat: one of tensors is a \w+: Tensor\.from_numpy makes one"
    ):
        ops.cat([x, other])


def test_a_tensor_is_no_sequence_of_them():
    """One that cat is given alone is no list of its parts, nor is a number."""
    for given in (Tensor.from_numpy(np.ones((2, 3), np.float32)), 5):
        with pytest.raises(ShapeError, match="cat: give at least one tensor, as a sequence of"):
            ops.cat(given)
