"""sort, argsort and topk against Python's sort, which is stable."""

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
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
up_and_down = pytest.mark.parametrize("descending", [False, True])


def row_order(row, *, descending):
    """The order of one row: Python's stable sort, with NaN as the largest."""
    keys = [n.item() if row.dtype.kind in "iu" else float(n) for n in row]
    keys = [(isinstance(n, float) and math.isnan(n), 0 if n != n else n) for n in keys]  # noqa: PLR0124
    return sorted(range(len(row)), key=keys.__getitem__, reverse=descending)


def order(x, dim, *, descending):
    """The same along any dimension, as i64."""
    rows = np.moveaxis(x, dim, -1)
    found = np.empty(rows.shape, np.int64)
    for index in np.ndindex(rows.shape[:-1]):
        found[index] = row_order(rows[index], descending=descending)
    return np.moveaxis(found, -1, dim)


def with_ties(draw, shape, dtype, seed=1):
    """Numbers of which many are equal, with NaNs and both zeros where there are any."""
    x = draw(shape, dtype, seed)
    x = (x / dtype.numpy.type(25)).astype(dtype.numpy) if dtype.is_integer else np.rint(x)
    if dtype.is_float and x.size > 6:
        x.reshape(-1)[::7], x.reshape(-1)[1::5], x.reshape(-1)[2::5] = np.nan, 0.0, -0.0
    return x


def check(run, run_pair, x, dim, *, descending):
    """All three ops agree with the oracle, bit for bit."""
    array = x.numpy()
    expected = order(array, dim, descending=descending)
    values = np.take_along_axis(array, expected, dim)
    actual = run(ops.argsort, x, dim, descending=descending)
    assert actual.dtype == np.int64
    np.testing.assert_array_equal(expected, actual)
    assert values.tobytes() == run(ops.sort, x, dim, descending=descending).tobytes()
    for k in {0, 1, array.shape[dim] // 2, array.shape[dim]} - {array.shape[dim] + 1}:
        if k <= array.shape[dim]:
            best, where = run_pair(ops.topk, x, k, dim, largest=descending)
            first = np.take(expected, np.arange(k), axis=dim)
            np.testing.assert_array_equal(first, where)
            assert np.take_along_axis(array, first, dim).tobytes() == best.tobytes()


@every_dtype
@up_and_down
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dimensions(run, run_pair, draw, dtype, descending, dim):
    """Every dtype along every dimension; equal elements keep their order."""
    x = Tensor.from_numpy(with_ties(draw, (4, 9, 3), dtype))
    check(run, run_pair, x, dim, descending=descending)


@up_and_down
def test_layouts(run, run_pair, lay, draw, how, descending):
    """Elements may lie anywhere."""
    for dtype in (dtypes.f32, dtypes.f8e4m3, dtypes.i64):
        x = lay(with_ties(draw, (4, 9, 3), dtype), how)
        check(run, run_pair, x, 1, descending=descending)


@up_and_down
@pytest.mark.parametrize(
    ("shape", "dim"), [((0,), 0), ((3, 0), 1), ((0, 3), 1), ((1,), -1), ((2, 1, 0), 0)]
)
def test_shapes(run, run_pair, draw, shape, dim, descending):
    """Rows without elements and of one element are in order."""
    x = Tensor.from_numpy(draw(shape, dtypes.f32))
    check(run, run_pair, x, dim, descending=descending)


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f8e4m3], ids=repr)
@up_and_down
def test_every_bit_pattern(run, dtype, descending):
    """All numbers, infinities and NaNs of the narrow floats are in order, and stable."""
    bits = np.arange(2 ** (8 * dtype.block_bytes), dtype=f"u{dtype.block_bytes}")
    x = bits.view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        expected = row_order(x.astype(np.float64), descending=descending)
    actual = run(ops.argsort, Tensor.from_numpy(x), descending=descending)
    np.testing.assert_array_equal(expected, actual)


@pytest.mark.parametrize("dtype", [d for d in PLAIN if d.is_integer], ids=repr)
@up_and_down
def test_integer_extremes(run, run_pair, dtype, descending):
    """The ends of the range are in their places, upwards and downwards."""
    info = np.iinfo(dtype.numpy)
    x = np.array([0, info.min, info.max, info.max - 1, info.min + 1, info.min, 5], dtype.numpy)
    check(run, run_pair, Tensor.from_numpy(x), 0, descending=descending)


def test_a_vocabulary(run_pair):
    """Rows of any length: the best of a quarter of a million logits."""
    x = np.random.default_rng(1).normal(size=(2, 262_144)).astype(np.float32)
    best, where = run_pair(ops.topk, Tensor.from_numpy(x), 40)
    np.testing.assert_array_equal(np.sort(x, axis=1)[:, :-41:-1], best)
    np.testing.assert_array_equal(best, np.take_along_axis(x, where, 1))


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple),
    data=st.data(),
    dtype=st.sampled_from(PLAIN),
    descending=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_shapes(run, run_pair, draw, shape, data, dtype, descending):
    """Any shape agrees with Python's sort along any dimension."""
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = Tensor.from_numpy(with_ties(draw, shape, dtype, 3))
    check(run, run_pair, x, dim, descending=descending)


def test_errors():
    """Missing dimensions, block formats and too large a k are errors that say why."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32))
    for op in (ops.sort, ops.argsort):
        with pytest.raises(ShapeError, match=rf"{op.name}: dimension 2 .* rank 2"):
            op(x, 2)
        with pytest.raises(ShapeError, match=rf"{op.name}: dimension -1 .* rank 0"):
            op(Tensor.from_numpy(np.array(1.0)))
        with pytest.raises(DTypeError, match=rf"{op.name}: x is q8_0; supported: f64"):
            op(Tensor.from_blocks(np.zeros(34, np.uint8), dtypes.q8_0, (1, 32)))
    for k in (-1, 4):
        with pytest.raises(OpError, match=rf"topk: k {k} must be between 0 and 3, the size of dim"):
            ops.topk(x, k)
    with pytest.raises(OpError, match=r"topk: out|topk: the result"):
        ops.topk.into((x, x), x, 2)
    with pytest.raises(OpError, match=r"topk: gives 2 tensors, got places for 1"):
        ops.topk.into((x,), x, 3)
