"""Slices and elements by index, read and written one by one by the oracles."""

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
from propolis.opspec.check import overlapping


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
INDICES = [np.uint8, np.uint32, np.int16, np.int32, np.int64]
every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
every_index = pytest.mark.parametrize("index", INDICES)
every_dim = pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])


def mask(index):
    """The index that is masked: the largest of its dtype."""
    return int(np.iinfo(index).max)


def select(x, ids, dim):
    """Slices one by one; masked ones are zeros."""
    result = np.zeros((*x.shape[: dim % x.ndim], len(ids), *x.shape[dim % x.ndim + 1 :]), x.dtype)
    source, target = np.moveaxis(x, dim, 0), np.moveaxis(result, dim, 0)
    for place, i in enumerate(ids):
        if int(i) != mask(ids.dtype):
            target[place] = source[int(i)]
    return result


def addresses(ids, dim):
    """Each place in ``ids`` that is not masked, in order along ``dim``, and where it points."""
    for place in sorted(np.ndindex(ids.shape), key=lambda p: p[dim]):
        if int(ids[place]) != mask(ids.dtype):
            there = list(place)
            there[dim] = int(ids[place])
            yield place, tuple(there)


def gathered(x, ids, dim):
    """Elements one by one; masked ones are 0."""
    result = np.zeros(ids.shape, x.dtype)
    for place, there in addresses(ids, dim):
        result[place] = x[there]
    return result


def added(target, pairs, source):
    """
    Sums as Python numbers, rounded once at the end; integers wrap around.

    Pairs are where an element comes from and where it is added.
    """
    whole = target.dtype.kind in "iu"
    total = target.astype(object if whole else np.float64)
    for place, there in pairs:
        total[there] += int(source[place]) if whole else float(source[place])
    if not whole:
        return total
    span = 256**target.dtype.itemsize
    unsigned = np.array([n % span for n in total.reshape(-1)], f"u{target.dtype.itemsize}")
    return unsigned.view(target.dtype).reshape(target.shape)


def some_ids(shape, size, index, *, masked=True):
    """Ids in range, repeated, and every fifth masked."""
    ids = np.random.default_rng([size, *shape]).integers(0, size, shape).astype(index)
    if masked:
        ids.reshape(-1)[::5] = mask(index)
    return ids


@pytest.fixture(scope="session")
def sums(close):
    """Check sums: integers exactly, floats by the op's tolerance."""

    def check(op, expected, actual):
        if actual.dtype.kind in "iu":
            np.testing.assert_array_equal(expected, actual)
        else:
            close(op, expected, actual)

    return check


@every_dtype
@every_index
def test_index_select(run, draw, dtype, index):
    """Slices of every dtype by ids of every dtype, bit for bit; masked ones are 0."""
    x, ids = draw((4, 5, 3), dtype), some_ids((7,), 5, index)
    actual = run(ops.index_select, *map(Tensor.from_numpy, (x, ids)), 1)
    assert select(x, ids, 1).tobytes() == actual.tobytes()


@every_dim
def test_index_select_layouts(run, lay, draw, how, dim):
    """Source and ids may lie anywhere, along any dimension."""
    x = lay(draw((4, 5, 3), dtypes.bf16), how)
    ids = lay(some_ids((6,), 3, np.int32), how)
    expected = select(x.numpy(), ids.numpy(), dim)
    assert expected.tobytes() == run(ops.index_select, x, ids, dim=dim).tobytes()


@pytest.mark.parametrize(("shape", "ids"), [((3, 4), []), ((0, 4), []), ((3, 0), [1, 2])])
def test_index_select_of_nothing(run, draw, shape, ids):
    """No ids, no rows or no width give nothing; of no rows, masked ids give zeros."""
    x = draw(shape, dtypes.f32)
    actual = run(ops.index_select, *map(Tensor.from_numpy, (x, np.array(ids, np.int64))))
    assert (len(ids), shape[1]) == actual.shape
    none = Tensor.from_numpy(np.full((2,), 255, np.uint8))
    empty = Tensor.from_numpy(np.empty((0, 3), np.float32))
    assert not run(ops.index_select, empty, none).any()
    assert not run(ops.embedding, none, empty).any()
    flat = Tensor.from_numpy(np.full((2, 3), 255, np.uint8))
    assert not run(ops.gather, empty, flat, 0).any()


@every_index
@pytest.mark.parametrize("block", [None, dtypes.q8_0])
def test_masked_embedding(run, draw, index, block):
    """Masked ids give rows of zeros, from plain tables and from blocks; 0-d too."""
    table = Tensor.from_numpy(draw((4, 32), dtypes.f32))
    table = table if block is None else ops.quantize(table, block)
    values = table.numpy() if block is None else ops.dequantize(table).numpy()
    ids = np.array([[0, mask(index)], [mask(index), 3]], index)
    expected = np.zeros((2, 2, 32), np.float32)
    expected[0, 0], expected[1, 1] = values[0], values[3]
    np.testing.assert_array_equal(expected, run(ops.embedding, Tensor.from_numpy(ids), table))
    one = Tensor.from_numpy(np.array(mask(index), index))
    assert not run(ops.embedding, one, table).any()


@every_dtype
@every_index
def test_gather(run, draw, dtype, index):
    """Elements of every dtype by ids of every dtype, bit for bit; masked ones are 0."""
    x, ids = draw((4, 5, 3), dtype), some_ids((4, 7, 2), 5, index)
    actual = run(ops.gather, *map(Tensor.from_numpy, (x, ids)), 1)
    assert gathered(x, ids, 1).tobytes() == actual.tobytes()


@every_dim
def test_gather_layouts(run, lay, draw, how, dim):
    """Source and ids may lie anywhere, along any dimension."""
    x, ids = lay(draw((4, 5, 3), dtypes.f16), how), lay(some_ids((4, 5, 3), 3, np.int64), how)
    expected = gathered(x.numpy(), ids.numpy(), dim)
    assert expected.tobytes() == run(ops.gather, x, ids, dim=dim).tobytes()


@every_dtype
@every_index
def test_scatter(change, draw, dtype, index):
    """Elements go where ids say; of several the last along the dimension stays."""
    target, ids = draw((4, 5, 3), dtype, 1), some_ids((3, 9, 2), 5, index)
    source = draw((3, 9, 2), dtype, 2)
    expected = target.copy()
    for place, there in addresses(ids, 1):
        expected[there] = source[place]
    actual = change(ops.scatter, target, *map(Tensor.from_numpy, (ids, source)), 1)
    assert expected.tobytes() == actual.tobytes()


@every_dtype
@every_index
def test_scatter_add(change, draw, sums, dtype, index):
    """Elements that several ids name receive all; integers wrap around."""
    target, ids = draw((4, 5, 3), dtype, 1), some_ids((3, 9, 2), 5, index)
    source = draw((3, 9, 2), dtype, 2)
    expected = added(target, addresses(ids, 1), source)
    actual = change(ops.scatter_add, target, *map(Tensor.from_numpy, (ids, source)), 1)
    sums(ops.scatter_add, expected, actual)


def slice_pairs(target, ids, dim):
    """Elements of slices: where each comes from and where it is added."""
    dim %= target.ndim
    shape = (*target.shape[:dim], len(ids), *target.shape[dim + 1 :])
    for place in np.ndindex(shape):
        if int(ids[place[dim]]) != mask(ids.dtype):
            yield place, (*place[:dim], int(ids[place[dim]]), *place[dim + 1 :])


@every_dtype
@every_index
def test_index_add(change, draw, sums, dtype, index):
    """Slices are added where ids say, all of them."""
    target, ids = draw((4, 5, 3), dtype, 1), some_ids((7,), 5, index)
    source = draw((4, 7, 3), dtype, 2)
    expected = added(target, slice_pairs(target, ids, 1), source)
    actual = change(ops.index_add, target, *map(Tensor.from_numpy, (ids, source)), 1)
    sums(ops.index_add, expected, actual)


@every_dim
@pytest.mark.parametrize("place", ["contiguous", "permuted", "offset", "step", "gaps"])
def test_layouts(change, lay, draw, sums, how, place, dim):
    """Targets may be views, of which nothing else is written; inputs may lie anywhere."""
    target = draw((4, 5, 3), dtypes.f16, 1)
    ids = lay(some_ids((4, 5, 3), 3, np.int32), how)
    source = lay(draw((4, 5, 3), dtypes.f16, 2), how)
    expected = target.copy()
    for there_from, there in addresses(ids.numpy(), dim):
        expected[there] = source.numpy()[there_from]
    assert expected.tobytes() == change(ops.scatter, target, ids, source, dim, how=place).tobytes()
    expected = added(target, addresses(ids.numpy(), dim), source.numpy())
    sums(ops.scatter_add, expected, change(ops.scatter_add, target, ids, source, dim, how=place))
    row = Tensor.from_numpy(some_ids((target.shape[dim],), 3, np.int32))
    expected = added(target, slice_pairs(target, row.numpy(), dim), source.numpy())
    sums(ops.index_add, expected, change(ops.index_add, target, row, source, dim=dim, how=place))


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f8e4m3], ids=repr)
def test_sums_are_rounded_once(change, dtype):
    """Many small numbers reach a sum that adding them one by one in the dtype would not."""
    target = np.zeros((2, 1), dtype.numpy)
    target[0] = 256
    ids, source = np.zeros((64, 1), np.int32), np.full((64, 1), 1, dtype.numpy)
    given_source = Tensor.from_numpy(source)
    actual = change(ops.scatter_add, target, Tensor.from_numpy(ids), given_source, 0)
    assert [[320.0], [0.0]] == actual.astype(np.float64).tolist()
    actual = change(ops.index_add, target, Tensor.from_numpy(ids[:, 0]), given_source, 0)
    assert [[320.0], [0.0]] == actual.astype(np.float64).tolist()


@given(data=st.data(), shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
@settings(max_examples=40, deadline=None)
def test_any_shapes(run, change, draw, data, shape):
    """Ids that are smaller than the target, or longer along the dimension, of any rank."""
    dim = data.draw(st.integers(0, len(shape) - 1))
    size = tuple(data.draw(st.integers(0, 5 if d == dim else n)) for d, n in enumerate(shape))
    x, source = draw(shape, dtypes.i64, 1), draw(size, dtypes.i64, 2)
    ids = some_ids(size, shape[dim], np.int32)
    np.testing.assert_array_equal(
        gathered(x, ids, dim), run(ops.gather, *map(Tensor.from_numpy, (x, ids)), dim)
    )
    expected = added(x, addresses(ids, dim), source)
    actual = change(ops.scatter_add, x, *map(Tensor.from_numpy, (ids, source)), dim)
    np.testing.assert_array_equal(expected, actual)
    expected = x.copy()
    for place, there in addresses(ids, dim):
        expected[there] = source[place]
    actual = change(ops.scatter, x, *map(Tensor.from_numpy, (ids, source)), dim)
    np.testing.assert_array_equal(expected, actual)


@pytest.mark.parametrize("wrong", [-1, 4, 100, -(2**15)])
def test_ids_outside(wrong):
    """An id outside is an error that names it, and nothing is read or written."""
    target = Tensor.from_numpy(np.full((4, 2), 7, np.float32))
    one, two = (Tensor.from_numpy(np.array(i, np.int16)) for i in ([0, wrong], [[0], [wrong]]))
    source = Tensor.from_numpy(np.ones((2, 2), np.float32))
    column = Tensor.from_numpy(np.ones((2, 1), np.float32))
    where = rf"id {wrong} is outside the dimension, which has 4 rows \(0 to 3\)"
    for call, name in (
        (lambda: ops.index_add(target, one, source), "index_add"),
        (lambda: ops.scatter(target, two, column, 0), "scatter"),
        (lambda: ops.scatter_add(target, two, column, 0), "scatter_add"),
        (lambda: ops.index_select.into(source, target, one), "index_select"),
        (lambda: ops.gather.into(column, target, two, 0), "gather"),
    ):
        with pytest.raises(OpError, match=rf"^{name}: {where}"):
            call()
    assert (target.numpy() == 7).all()
    assert (source.numpy() == 1).all()
    assert (column.numpy() == 1).all()


@pytest.mark.parametrize("op", [ops.scatter, ops.scatter_add])
def test_sources_from_the_target(op):
    """What is written may be a part of what is written over: it is read before."""
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    target = Tensor.from_numpy(array.copy())
    ids = Tensor.from_numpy(np.array([[3, 0, 1], [2, 1, 3]], np.int32))
    op(target, ids, target.narrow(0, 0, 2), 0)
    expected = array.copy()
    for row in range(2):
        for column in range(3):
            place = ids.numpy()[row, column], column
            value = array[row, column]
            expected[place] = value if op is ops.scatter else expected[place] + value
    np.testing.assert_array_equal(target.numpy(), expected)


def test_sources_between_the_targets_rows():
    """A target with gaps is as long as from its first element to its last."""
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    whole = Tensor.from_numpy(array.copy())
    target, source = whole.narrow(1, 0, 2), whole.narrow(0, 4, 2).narrow(1, 0, 2)
    ids = Tensor.from_numpy(np.array([5, 4], np.int32))
    args = target, ids, source, 0
    assert overlapping(ops.index_add, target, args, {}, own=True) == [source]
    ops.index_add(target, ids, source, 0)
    expected = array.copy()
    expected[[5, 4], :2] += array[4:6, :2]
    np.testing.assert_array_equal(whole.numpy(), expected)


def test_targets_that_repeat():
    """A target of stride 0 has no one place for an element: an error."""
    row = Tensor.from_numpy(np.zeros((1, 3), np.float32)).broadcast_to(4, 3)
    ids, source = (
        Tensor.from_numpy(np.zeros((1, 3), np.int32)),
        Tensor.from_numpy(np.ones((1, 3), np.float32)),
    )
    with pytest.raises(OpError, match=r"scatter: the target repeats elements"):
        ops.scatter(row, ids, source, 0)
    with pytest.raises(OpError, match=r"scatter_add: the target repeats elements"):
        ops.scatter_add(row, ids, source, 0)
    with pytest.raises(OpError, match=r"index_add: the target repeats elements"):
        ops.index_add(row, Tensor.from_numpy(np.zeros(1, np.int32)), source, 0)


def test_errors():
    """Shapes, dtypes and dimensions that do not fit are errors that name the op."""
    x = Tensor.from_numpy(np.ones((3, 4), np.float32))
    half = Tensor.from_numpy(np.ones((3, 4), np.float16))
    ids = Tensor.from_numpy(np.zeros((3, 4), np.int32))
    row, wide = (Tensor.from_numpy(np.zeros(s, np.int32)) for s in ((3,), (4, 1)))
    with pytest.raises(ShapeError, match=r"index_select: ids is of rank 1; got .*ids \(3, 4\)"):
        ops.index_select(x, ids)
    with pytest.raises(ShapeError, match=r"index_select: dimension 2 .* rank 2"):
        ops.index_select(x, row, 2)
    with pytest.raises(DTypeError, match=r"index_select: ids is f32; supported: u8, u32, i16, i32"):
        ops.index_select(x, Tensor.from_numpy(np.ones(3, np.float32)))
    for bad in (row, wide):
        with pytest.raises(ShapeError, match=r"gather: ids has the same rank and is no larger out"):
            ops.gather(x, bad, 1)
    with pytest.raises(ShapeError, match=r"gather: dimension -3 .* rank 2"):
        ops.gather(x, ids, -3)
    for op in (ops.scatter, ops.scatter_add):
        with pytest.raises(DTypeError, match=rf"{op.name}: target is f32, source is f16"):
            op(x, ids, half)
        with pytest.raises(ShapeError, match=rf"{op.name}: ids and source agree; got ids"):
            op(x, ids, x.narrow(0, 0, 2))
    with pytest.raises(DTypeError, match=r"index_add: target is f32, source is f16"):
        ops.index_add(x, row, half)
    with pytest.raises(ShapeError, match=r"index_add: ids is \(n,\) and source has n slices"):
        ops.index_add(x, row, x, 1)


@pytest.mark.parametrize("op", [ops.scatter, ops.scatter_add, ops.index_add], ids=lambda o: o.name)
def test_an_empty_target_repeats_nothing(op: ops.Op) -> None:
    """Rows of no elements have strides of 0; writing nothing to them is no error."""
    target = Tensor.from_numpy(np.zeros((3, 5, 0), np.float32))
    shape = (2,) if op is ops.index_add else (2, 5, 0)
    ids = Tensor.from_numpy(np.zeros(shape, np.int64))
    source = Tensor.from_numpy(np.zeros((2, 5, 0), np.float32))
    assert target is op(target, ids, source, 0)
