"""argmax against a loop over Python's numbers."""

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
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)


def first_largest(row):
    """The index of the first NaN, or else of the first of the largest."""
    if row.dtype.kind in "iu":
        numbers = [int(n) for n in row]
    else:
        numbers = [float(n) for n in row.astype(np.float64)]
        for i, number in enumerate(numbers):
            if math.isnan(number):
                return i
    return numbers.index(max(numbers))


def argmax(x, dim=-1):
    """The oracle along any dimension, as an i64 array."""
    rows = np.moveaxis(x, dim, -1)
    found = [first_largest(rows[index]) for index in np.ndindex(rows.shape[:-1])]
    return np.array(found, np.int64).reshape(rows.shape[:-1])


@every_dtype
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_layouts(run, lay, draw, how, dtype, dim):
    """Every dtype in every layout gives the first largest along every dimension."""
    x = lay(draw((3, 4, 5), dtype, 1), how)
    actual = run(ops.argmax, x, dim)
    assert actual.dtype == np.int64
    np.testing.assert_array_equal(argmax(x.numpy(), dim), actual)


@every_dtype
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((1,), 0), ((7,), -1), ((0, 3), 1), ((3, 0), 0), ((2, 1, 0), 1), ((1, 1, 4097), -1)],
)
def test_shapes(run, draw, dtype, shape, dim):
    """Vectors give a scalar, and other dimensions may be empty."""
    x = draw(shape, dtype)
    actual = run(ops.argmax, Tensor.from_numpy(x), dim=dim)
    expected = argmax(x, dim)
    assert expected.shape == actual.shape
    np.testing.assert_array_equal(expected, actual)


@every_dtype
def test_ties(run, dtype):
    """Of several largest the first is taken; zeros of both signs are equal."""
    x = np.array([[1, 3, 3, 2], [2, 2, 2, 2], [0, 1, 0, 1]]).astype(dtype.numpy)
    assert [1, 0, 1] == run(ops.argmax, Tensor.from_numpy(x)).tolist()
    if dtype.is_float:
        zeros = np.array([[-0.0, 0.0], [0.0, -0.0]]).astype(dtype.numpy)
        assert [0, 0] == run(ops.argmax, Tensor.from_numpy(zeros)).tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("width", [3, 40])
def test_nan(run, dtype, width):
    """The first NaN, of either sign, is the largest, even beside infinity."""
    for at in range(width):
        x = np.zeros(width)
        x[-1] = np.inf
        x[at:] = np.where(np.arange(width - at) % 2, np.nan, -np.nan)
        x = x.astype(dtype.numpy)
        assert first_largest(x) == run(ops.argmax, Tensor.from_numpy(x)).item()
    low = np.full(width, -np.inf).astype(dtype.numpy)
    assert run(ops.argmax, Tensor.from_numpy(low)).item() == 0


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f8e4m3], ids=repr)
def test_every_bit_pattern(run, dtype):
    """A NaN of any bits, signalling ones too, is found without a warning."""
    bits = np.arange(2 ** (8 * dtype.block_bytes), dtype=f"u{dtype.block_bytes}")
    x = np.stack([np.zeros_like(bits), bits], axis=1).view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        values = x[:, 1].astype(np.float64)
    expected = (values > 0) | np.isnan(values)
    np.testing.assert_array_equal(expected, run(ops.argmax, Tensor.from_numpy(x)))


@pytest.mark.parametrize("dtype", [d for d in PLAIN if d.is_integer], ids=repr)
def test_integer_extremes(run, dtype):
    """Neighbours at the ends of the range are told apart, which floats could not."""
    info = np.iinfo(dtype.numpy)
    x = np.array([[info.max - 1, info.max, info.min], [info.min, info.min + 1, info.min]])
    x = x.astype(dtype.numpy)
    assert [1, 1] == run(ops.argmax, Tensor.from_numpy(x)).tolist()


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    data=st.data(),
    dtype=st.sampled_from(PLAIN),
)
@settings(max_examples=50, deadline=None)
def test_any_shapes(run, draw, shape, data, dtype):
    """Any shape agrees with the loop along any dimension."""
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = draw(shape, dtype, 3)
    np.testing.assert_array_equal(argmax(x, dim), run(ops.argmax, Tensor.from_numpy(x), dim))


def test_errors():
    """An empty or missing dimension and block formats are errors that say why."""
    empty = Tensor.from_numpy(np.ones((2, 0), np.float32))
    with pytest.raises(ShapeError, match=r"argmax: dimension 1 must not be empty; got x \(2, 0\)"):
        ops.argmax(empty)
    for shape, dim in (((), -1), ((3,), 1), ((3, 4), -3)):
        with pytest.raises(ShapeError, match=rf"argmax: dimension {dim} .* rank {len(shape)}"):
            ops.argmax(Tensor.from_numpy(np.ones(shape)), dim)
    blocks = Tensor.from_blocks(np.zeros(34, np.uint8), dtypes.q8_0, (1, 32))
    with pytest.raises(
        DTypeError, match=r"argmax: x is q8_0; supported: f64, .*i64; ops.\(de\)quantize"
    ):
        ops.argmax(blocks)
