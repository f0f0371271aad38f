"""copy and kv_append: bits are moved, none is changed."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
BLOCKS = [d for d in dtypes.ALL if d.is_block]
every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)


def any_bits(shape, dtype, seed=0):
    """An array of any bit patterns, NaNs of all kinds among them."""
    size = dtype.nbytes(int(np.prod(shape)))
    raw = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return raw.view(dtype.numpy).reshape(shape)


def raw(array):
    """The bytes of an array in row-major order."""
    return array.tobytes()


@every_dtype
def test_copy(run, lay, how, dtype):
    """A copy has the same bits in row-major order, whatever they are."""
    x = lay(any_bits((3, 4, 5), dtype), how)
    assert raw(x.numpy()) == raw(run(ops.copy, x))


@every_dtype
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (129,)])
def test_copy_shapes(run, dtype, shape):
    """Tensors without elements and without dimensions are copied."""
    x = any_bits(shape, dtype)
    actual = run(ops.copy, Tensor.from_numpy(x))
    assert shape == actual.shape
    assert raw(x) == raw(actual)


@pytest.mark.parametrize("dtype", BLOCKS, ids=repr)
def test_copy_of_blocks(run, dtype):
    """Rows of blocks are copied byte for byte, also where a view orders them otherwise."""
    width = 2 * dtype.block_size
    blocks = np.random.default_rng(1).integers(0, 256, 6 * dtype.nbytes(width), np.uint8)
    x = Tensor.from_blocks(blocks, dtype, (2, 3, width))
    rows = blocks.reshape(2, 3, -1)
    assert raw(blocks) == raw(run(ops.copy, x))
    assert raw(rows.transpose(1, 0, 2)) == raw(run(ops.copy, x.permute(1, 0, 2)))
    assert raw(rows[:, 1:]) == raw(run(ops.copy, x.narrow(1, 1, 2)))


def append(cache, x, positions):
    """``cache[b, positions[b, t]] = x[b, t]``, one row after the other."""
    result = cache.copy()
    for b, t in np.ndindex(positions.shape):
        result[b, int(positions[b, t])] = x[b, t]
    return result


def appended(cache, x, positions):
    """The cache after ``ops.kv_append``, once it is sure that nothing else changed."""
    sources = [(t, t.storage.bytes.copy()) for t in (x, positions)]
    assert ops.kv_append(cache, x, positions) is cache
    for tensor, before in sources:
        np.testing.assert_array_equal(before, tensor.storage.bytes)
    return cache.numpy()


@every_dtype
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_kv_append(dtype, index):
    """Rows of several sequences go to their positions, in any order; others keep their bits."""
    cache, x = any_bits((3, 7, 2, 5), dtype, 1), any_bits((3, 2, 2, 5), dtype, 2)
    positions = np.array([[0, 1], [6, 3], [2, 5]], index)
    expected = append(cache, x, positions)
    actual = appended(*map(Tensor.from_numpy, (cache, x, positions)))
    assert raw(expected) == raw(actual)


@every_dtype
def test_kv_append_layouts(lay, how, dtype):
    """New rows and positions may lie anywhere."""
    cache = any_bits((3, 7, 2, 4), dtype, 1)
    x = lay(any_bits((3, 2, 2, 4), dtype, 2), how)
    positions = lay(np.array([[0, 6], [5, 3], [1, 2]], np.int32), how)
    expected = append(cache, x.numpy(), positions.numpy())
    assert raw(expected) == raw(appended(Tensor.from_numpy(cache), x, positions))


@pytest.mark.parametrize("how", ["permuted", "offset", "gaps"])
def test_kv_append_to_a_strided_cache(lay, how):
    """A cache may be a view: its rows are written, and not one byte between them."""
    array = any_bits((2, 6, 3, 4), dtypes.f16, 1)
    x, positions = any_bits((2, 3, 3, 4), dtypes.f16, 2), np.array([[5, 0, 2], [1, 3, 4]])
    cache = lay(array, how)
    twin = lay(append(array, x, positions), how)
    actual = appended(cache, *map(Tensor.from_numpy, (x, positions)))
    assert raw(append(array, x, positions)) == raw(actual)
    np.testing.assert_array_equal(twin.storage.bytes, cache.storage.bytes)


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_kv_append_of_nothing(shape):
    """No sequences, or no new tokens, leave the cache as it was; it may be empty too."""
    for capacity in (0, 3):
        cache = any_bits((shape[0], capacity, 2, 4), dtypes.f32)
        x, positions = np.empty((*shape, 2, 4), np.float32), np.empty(shape, np.int32)
        before = cache.copy()
        assert raw(before) == raw(appended(*map(Tensor.from_numpy, (cache, x, positions))))


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_positions_outside_the_cache(wrong, index):
    """A position outside is an error that names it, and no sequence is written."""
    cache = any_bits((2, 4, 1, 2), dtypes.f32)
    before = cache.copy()
    x = Tensor.from_numpy(np.ones((2, 2, 1, 2), np.float32))
    positions = Tensor.from_numpy(np.array([[0, 1], [2, wrong]], index))
    message = rf"kv_append: position {wrong} is outside the cache, which has 4 rows \(0 to 3\)"
    with pytest.raises(OpError, match=message):
        ops.kv_append(Tensor.from_numpy(cache), x, positions)
    assert raw(before) == raw(cache)


@pytest.mark.parametrize(
    ("cache", "x", "positions"),
    [
        ((2, 4, 2, 8), (1, 1, 2, 8), (1, 1)),
        ((2, 4, 2, 8), (2, 1, 1, 8), (2, 1)),
        ((2, 4, 2, 8), (2, 1, 2, 4), (2, 1)),
        ((2, 4, 2, 8), (2, 1, 2, 8), (2,)),
        ((4, 2, 8), (1, 2, 8), (1,)),
    ],
)
def test_kv_append_shape_errors(cache, x, positions):
    """Shapes that do not fit are an error that gives the rule and all three."""
    tensors = [Tensor.from_numpy(np.ones(s, np.float32)) for s in (cache, x)]
    with pytest.raises(ShapeError, match=r"kv_append: cache is \(batch, capacity.*; got cache \("):
        ops.kv_append(*tensors, Tensor.from_numpy(np.zeros(positions, np.int32)))


def test_kv_append_other_errors():
    """Mixed dtypes, positions of other dtypes and a place for the result are errors."""
    cache, x = (Tensor.from_numpy(np.ones((1, 2, 1, 1), np.float32)) for _ in range(2))
    positions = Tensor.from_numpy(np.array([[0, 1]]))
    half = Tensor.from_numpy(np.ones((1, 2, 1, 1), np.float16))
    with pytest.raises(DTypeError, match=r"kv_append: cache is f32, x is f16; .*ops.cast"):
        ops.kv_append(cache, half, positions)
    short = Tensor.from_numpy(np.array([[0, 1]], np.uint32))
    with pytest.raises(DTypeError, match=r"kv_append: positions is u32; supported: i32, i64"):
        ops.kv_append(cache, x, short)
    with pytest.raises(OpError, match=r"kv_append: writes into its first argument"):
        ops.kv_append.into(cache, cache, x, positions)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.is_block], ids=repr)
def test_blocks_are_appended_and_assigned(dtype):
    """Bytes of whole blocks, into a cache of heads first and between views of it."""
    width = 2 * dtype.block_size
    nbytes = dtype.nbytes(width)
    raw = np.random.default_rng(0).integers(0, 256, 2 * 3 * 2 * nbytes, np.uint8)
    x = Tensor.from_blocks(raw, dtype, (2, 3, 2, width))
    memory = np.zeros(2 * 2 * 7 * nbytes, np.uint8)
    cache = Tensor.from_blocks(memory, dtype, (2, 2, 7, width)).permute(0, 2, 1, 3)
    at = np.array([[4, 0, 6], [1, 2, 3]], np.int32)
    ops.kv_append(cache, x, Tensor.from_numpy(at))
    expected = np.zeros((2, 7, 2, nbytes), np.uint8)
    for sequence, places in enumerate(at):
        expected[sequence, places] = raw.reshape(2, 3, 2, nbytes)[sequence]
    np.testing.assert_array_equal(cache.numpy(), expected)
    ops.assign(cache.narrow(1, 3, 2), x.narrow(1, 0, 1))
    expected[:, 3:5] = raw.reshape(2, 3, 2, nbytes)[:, :1]
    np.testing.assert_array_equal(cache.numpy(), expected)


@pytest.mark.parametrize("dtype", ["f32", np.float32, None, dtypes.q4_0], ids=str)
def test_constants_of_no_plain_dtype(dtype):
    """What was given is named, and how dtypes are."""
    with pytest.raises(
        DTypeError, match=r"full: dtype .*; supported: plain dtypes, as dtypes\.f32"
    ):
        ops.full((2, 32), 1, dtype)


def test_constants_on_a_device_by_its_id():
    """Or on the CPU of the default runtime, where none is given."""
    assert ops.full((2,), 3, dtypes.i32, "cpu").numpy().tolist() == [3, 3]
    assert ops.full((), 0.5, dtypes.f32).item() == 0.5
