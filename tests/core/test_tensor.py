from __future__ import annotations

import copy
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.config import Config
from propolis.errors import ArgumentTypeError
from propolis.errors import DeviceNotFoundError
from propolis.errors import DTypeError
from propolis.errors import ShapeError
from propolis.errors import UsageError
from propolis.layout import Layout
from propolis.runtime import Runtime
from propolis.runtime import default_runtime
from propolis.runtime import set_default_runtime


def count(*shape, dtype=np.float32):
    """0, 1, 2 ... in that shape."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@pytest.fixture
def blocks(cpu):
    """A 2x3x64 tensor of q4_0 blocks, and its bytes by row."""
    raw = np.random.default_rng(0).integers(0, 256, 2 * 3 * 36, np.uint8)
    return Tensor.from_blocks(raw, dtypes.q4_0, (2, 3, 64), cpu), raw.reshape(2, 3, 36)


# -- numpy ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_block], ids=str)
def test_round_trip(cpu, dtype):
    """Every plain dtype goes to a tensor and back unchanged, in the same memory."""
    array = count(2, 3).astype(dtype.numpy)
    tensor = Tensor.from_numpy(array, cpu)
    assert (tensor.shape, tensor.strides, tensor.dtype) == ((2, 3), (3, 1), dtype)
    assert (tensor.numel, tensor.nbytes) == (6, array.nbytes)
    assert np.shares_memory(tensor.numpy(), array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.ptr == array.ctypes.data


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[1:, ::2],
        lambda a: a[:, 1],
        np.asfortranarray,
        lambda a: np.broadcast_to(a[:, :1], (4, 5)),
        lambda a: a[2:2],
        lambda a: a[1, 1, ...],
    ],
    ids=["transposed", "stepped", "column", "fortran", "broadcast", "empty", "scalar"],
)
def test_strided_arrays_are_shared(cpu, view):
    """Positive strides of whole elements are taken as they are, offsets included."""
    array = view(count(4, 6))
    tensor = Tensor.from_numpy(array, cpu)
    rebuilt = Tensor(tensor.storage, tensor.layout, tensor.dtype, cpu)
    np.testing.assert_array_equal(rebuilt.numpy(), array)
    if array.size:
        assert np.shares_memory(rebuilt.numpy(), array)
        assert rebuilt.ptr == array.__array_interface__["data"][0]


def test_other_strides_are_copied(cpu):
    """Negative strides, and those that split an element, cannot be shared."""
    backwards = count(4)[::-1]
    pair = np.zeros(3, np.dtype([("a", "i2"), ("b", "f4")]))
    pair["b"] = [1, 2, 3]
    for array in (backwards, pair["b"]):
        tensor = Tensor.from_numpy(array, cpu)
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert not np.shares_memory(tensor.numpy(), array)


def test_from_numpy_keeps_the_memory_alive(cpu):
    """The tensor, or a view of it, is enough to keep the array's memory."""
    array = count(4, 6)
    gone = weakref.ref(array)
    tensor = Tensor.from_numpy(array[1:], cpu).narrow(1, 2, 3)
    del array
    assert gone() is not None
    np.testing.assert_array_equal(tensor.numpy(), count(4, 6)[1:, 2:5])
    del tensor
    assert gone() is None


def test_from_what_is_no_array(cpu):
    """A list has no dtype; the error says how to make an array."""
    with pytest.raises(DTypeError, match=r"a list is no numpy array: np\.asarray"):
        Tensor.from_numpy([1, 2], cpu)


def test_from_an_unknown_dtype(cpu):
    """Complex numbers have no dtype here."""
    with pytest.raises(DTypeError, match=r"complex64.*float32"):
        Tensor.from_numpy(np.zeros(2, np.complex64), cpu)


def test_the_default_device_is_the_default_runtimes_cpu():
    """Without a device, tensors belong to the process's runtime."""
    assert Tensor.from_numpy(count(2)).device is default_runtime().cpu
    other = Runtime.start(Config())
    set_default_runtime(other)
    assert Tensor.from_numpy(count(2)).device is other.cpu
    assert Tensor.from_blocks(np.zeros(18, np.uint8), dtypes.q4_0, (32,)).device is other.cpu


def test_devices_by_id():
    """An id is a device of the process's runtime; what is neither is named."""
    here = default_runtime().cpu
    tensor = Tensor.from_numpy(count(2), "cpu")
    assert here is tensor.device
    assert here is Tensor.from_blocks(np.zeros(18, np.uint8), dtypes.q4_0, (32,), "cpu:0").device
    assert tensor.to("cpu") is tensor
    with pytest.raises(DeviceNotFoundError, match="no device 'cqu'; present: cpu"):
        tensor.to("cqu")
    with pytest.raises(ArgumentTypeError, match="device is 5; supported: an id"):
        tensor.to(5)


def test_scalars(cpu):
    """A tensor of rank 0 has one element."""
    tensor = Tensor.from_numpy(np.array(2.5, np.float32), cpu)
    assert (tensor.shape, tensor.numel, tensor.item()) == ((), 1, 2.5)
    assert repr(tensor) == "<Tensor scalar f32 on cpu>"
    assert tensor.unsqueeze(0).reshape(1, 1).squeeze(1).item() == 2.5


def test_arrays_of_numpy(cpu):
    """Functions of numpy take a tensor as the array in its memory, cast when asked to."""
    array = count(2, 3)
    tensor = Tensor.from_numpy(array, cpu).transpose(0, 1)
    assert np.shares_memory(np.asarray(tensor), array)
    assert np.shares_memory(np.asarray(tensor, copy=False), array)
    np.testing.assert_array_equal(np.asarray(tensor), array.T)
    assert not np.shares_memory(np.array(tensor), array)
    assert np.asarray(tensor, np.int64).tolist() == array.T.tolist()
    assert np.float32 == np.asarray(tensor).dtype
    assert np.sum(tensor) == 15


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if not d.is_block], ids=str)
def test_arrays_of_every_dtype(cpu, dtype):
    """bf16 and f8 become arrays of the dtypes that stand for them in numpy."""
    array = count(3).astype(dtype.numpy)
    found = np.asarray(Tensor.from_numpy(array, cpu))
    assert found.dtype == dtype.numpy
    assert np.shares_memory(found, array)


def test_arrays_without_a_copy(cpu, fakes):
    """copy=False is an error where there is no array in the same memory."""
    here, there = (Tensor.from_numpy(count(2), d) for d in (cpu, fakes.device()))
    assert np.asarray(there).tolist() == [0, 1]
    for make in (
        lambda: here.__array__(np.dtype(np.int64), copy=False),
        lambda: there.__array__(copy=False),
        lambda: np.asarray(there, copy=False),
    ):
        with pytest.raises(ValueError, match=r"^<Tensor 2 f32 on .*by a copy alone: leave out"):
            make()
    with pytest.raises(ValueError, match="copy"):
        np.asarray(here, np.int64, copy=False)


def test_arrays_of_read_only_memory(cpu):
    """What cannot be written through the tensor cannot be through the array."""
    array = count(2)
    array.flags.writeable = False
    assert not np.asarray(Tensor.from_numpy(array, cpu)).flags.writeable


def test_blocks_are_no_array(blocks):
    """Bytes of blocks in the place of numbers would be wrong without a word."""
    with pytest.raises(DTypeError, match=r"2x3x64 q4_0 .* no array of numbers: ops\.dequantize"):
        np.asarray(blocks[0])


def test_item_of_several(cpu):
    """Only one element is a number."""
    with pytest.raises(ShapeError, match=r"2x3 f32 on cpu> has 6 elements, not 1"):
        Tensor.from_numpy(count(2, 3), cpu).item()


def test_truth(cpu):
    """That of the one element; of several it is asked for in vain, and told so."""
    assert Tensor.from_numpy(np.ones((1, 1), np.uint8), cpu)
    assert not Tensor.from_numpy(np.zeros(1, np.float32), cpu)
    for shape in ((2,), (0,)):
        with pytest.raises(ShapeError, match=r"elements, not 1; \.numpy\(\) gives them all"):
            bool(Tensor.from_numpy(np.ones(shape, np.uint8), cpu))


def test_empty_tensors(cpu):
    """A size of 0 is a size: everything works and shows nothing."""
    tensor = Tensor.from_numpy(np.empty((0, 3), np.float32), cpu)
    assert tensor.transpose(0, 1).contiguous().shape == (3, 0)
    assert tensor.reshape(3, 0).numpy().shape == (3, 0)
    assert Tensor(tensor.storage, Layout((2, 0), (1, 7)), dtypes.f32, cpu).array.shape == (2, 0)
    tensor.assign(np.empty((0, 3), np.float32))


# -- assign --------------------------------------------------------------------


def test_assign_writes_in_place(cpu):
    """The elements change, the memory does not; other views see it."""
    array = count(2, 3)
    tensor = Tensor.from_numpy(array, cpu)
    tensor.assign(10 + count(2, 3))
    np.testing.assert_array_equal(array, 10 + count(2, 3))
    tensor.narrow(0, 1, 1).assign(count(3, 1).T)
    np.testing.assert_array_equal(array, [[10, 11, 12], [0, 1, 2]])


def test_assign_of_another_shape(cpu):
    """Nothing is broadcast."""
    with pytest.raises(ShapeError, match=r"and \(3,\) does not fit <Tensor 2x3 f32 on cpu>"):
        Tensor.from_numpy(count(2, 3), cpu).assign(count(3))


def test_assign_to_a_strided_view(cpu):
    """The error says that the strides are the trouble, not the shape."""
    with pytest.raises(ShapeError, match=r"has strides \(1, 3\); only contiguous"):
        Tensor.from_numpy(count(2, 3), cpu).transpose(0, 1).assign(count(3, 2))


@pytest.mark.parametrize(
    ("shape", "strides", "refused"),
    [
        ((3, 3), (1, 1), True),
        ((3, 1), (0, 1), True),
        ((2, 2), (2, 2), True),
        ((4, 3), (2, 3), True),
        ((3, 2), (2, 3), False),
        ((3, 1), (1, 0), False),
        ((0, 3), (0, 1), False),
        ((2, 3, 2), (1, 4, 2), False),
    ],
)
def test_assign_to_what_overlaps_itself(cpu, shape, strides, refused):
    """An element at two places would be what is written last, which nobody knows."""
    memory = np.zeros(40, np.float32)
    view = np.lib.stride_tricks.as_strided(memory, shape, [4 * s for s in strides])
    source = Tensor.from_numpy(np.ones(shape, np.float32), cpu)
    target = Tensor.from_numpy(view, cpu)
    if refused:
        with pytest.raises(ShapeError, match="an element may be at several places"):
            ops.assign(target, source)
        assert not memory.any()
    else:
        ops.assign(target, source)
        assert (view == 1).all()


def test_assign_of_another_dtype(cpu):
    """Nothing is cast."""
    with pytest.raises(
        DTypeError, match=r"an array of float64 and \(2,\) does not fit <Tensor 2 f32"
    ):
        Tensor.from_numpy(count(2), cpu).assign(count(2, dtype=np.float64))


def test_assign_to_read_only_memory(cpu):
    """A mapped weight file cannot be written; the error says so and what to do."""
    array = count(2)
    array.flags.writeable = False
    tensor = Tensor.from_numpy(array, cpu)
    with pytest.raises(UsageError, match=r"read-only .* ops\.copy"):
        tensor.assign(count(2))
    assert not Tensor(tensor.storage, tensor.layout, tensor.dtype, cpu).array.flags.writeable


# -- views ---------------------------------------------------------------------


@given(st.data())
@settings(max_examples=100)
def test_views_agree_with_numpy(data):
    """Views of a tensor show what numpy's views of the same array show, in shared memory."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    array = count(*shape)
    cpu = _cpu()
    tensor = Tensor.from_numpy(array, cpu)
    order = data.draw(st.permutations(range(len(shape))))
    view, truth = tensor.permute(*order), array.transpose(order)
    start = data.draw(st.integers(0, truth.shape[0] - 1))
    length = truth.shape[0] - start
    view, truth = view.narrow(0, start, length), truth[start:]
    view, truth = view.transpose(-1, 0), truth.swapaxes(-1, 0)
    view, truth = view.unsqueeze(1), np.expand_dims(truth, 1)
    wide = (2, truth.shape[0], 3, *truth.shape[2:])
    view, truth = view.broadcast_to(*wide), np.broadcast_to(truth, wide)
    np.testing.assert_array_equal(view.numpy(), truth)
    assert np.shares_memory(view.numpy(), array)
    dense = view.contiguous()
    assert dense.is_contiguous
    np.testing.assert_array_equal(dense.numpy(), truth)
    np.testing.assert_array_equal(view.reshape(2, -1).numpy(), truth.reshape(2, -1))


_kept: list[Runtime] = []


def _cpu():
    """One CPU for all examples of a property."""
    if not _kept:
        _kept.append(Runtime.start(Config()))
    return _kept[0].cpu


def test_contiguous_of_contiguous_is_itself(cpu):
    """Nothing is copied that need not be."""
    tensor = Tensor.from_numpy(count(2, 3), cpu)
    assert tensor.contiguous() is tensor
    assert np.shares_memory(tensor.reshape(6).numpy(), tensor.numpy())


def test_unflatten_keeps_memory(cpu):
    """Heads are split out of a row without a copy, whatever its strides."""
    array = count(6, 4)
    heads = Tensor.from_numpy(array, cpu).transpose(0, 1).unflatten(1, 3)
    np.testing.assert_array_equal(heads.numpy(), array.T.reshape(4, 2, 3))
    assert np.shares_memory(heads.numpy(), array)


@pytest.mark.parametrize("dims", [(0, 2), (-3, 0)])
def test_transpose_of_dimensions_that_do_not_exist(cpu, dims):
    """The same error as any other view's."""
    with pytest.raises(ShapeError, match=r"transpose: dimension .* rank 2"):
        Tensor.from_numpy(count(2, 3), cpu).transpose(*dims)


# -- block formats -------------------------------------------------------------


def test_blocks_show_their_bytes(blocks):
    """The array of a block format counts its last dimension in bytes."""
    tensor, raw = blocks
    assert (tensor.shape, tensor.numel, tensor.nbytes) == ((2, 3, 64), 384, raw.nbytes)
    np.testing.assert_array_equal(tensor.numpy(), raw)


def test_views_of_blocks(blocks):
    """Whole rows and whole blocks can be narrowed, permuted, split and repeated."""
    tensor, raw = blocks
    for view, truth in (
        (tensor.permute(1, 0, 2), raw.transpose(1, 0, 2)),
        (tensor.narrow(1, 1, 2), raw[:, 1:]),
        (tensor.narrow(2, 32, 32), raw[..., 18:]),
        (tensor.reshape(6, 64), raw.reshape(6, 36)),
        (tensor.unflatten(2, 32), raw.reshape(2, 3, 2, 18)),
        (tensor.unsqueeze(0).broadcast_to(4, 2, 3, 64), np.broadcast_to(raw, (4, 2, 3, 36))),
        (tensor.narrow(0, 1, 1).squeeze(0), raw[1]),
        (tensor.narrow(0, 1, 0), raw[1:1]),
        (tensor.permute(1, 0, 2).contiguous(), raw.transpose(1, 0, 2)),
    ):
        np.testing.assert_array_equal(view.numpy(), truth)


def test_views_that_would_cut_blocks(blocks):
    """The error names the view and says what to do."""
    tensor, _ = blocks
    for view in (
        lambda: tensor.narrow(2, 16, 32),
        lambda: tensor.narrow(2, 0, 48),
        lambda: tensor.permute(0, 2, 1),
        lambda: tensor.unsqueeze(-1),
        lambda: tensor.unflatten(2, 16),
        lambda: tensor.reshape(8, 48),
        lambda: tensor.narrow(0, 0, 1).narrow(1, 0, 1).reshape(64).unflatten(0, 1),
    ):
        with pytest.raises(DTypeError, match=r"would cut blocks of 32 elements; ops\.dequantize"):
            view()


def test_empty_blocks(cpu):
    """No rows are a valid tensor."""
    tensor = Tensor.from_blocks(np.empty(0, np.uint8), dtypes.q8_0, (0, 64), cpu)
    assert tensor.numpy().shape == (0, 68)
    assert Tensor.from_blocks(np.empty(0, np.uint8), dtypes.q8_0, (3, 0), cpu).nbytes == 0


def test_from_blocks_of_a_plain_dtype(cpu):
    """Weight files hold plain tensors as bytes too; the bytes are shared."""
    array = count(2, 3)
    raw = array.reshape(-1).view(np.uint8)
    tensor = Tensor.from_blocks(raw, dtypes.f32, (2, 3), cpu)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert np.shares_memory(tensor.numpy(), array)
    assert Tensor.from_blocks(raw[:4], dtypes.f32, (), cpu).item() == 0.0


def test_from_blocks_of_another_size(cpu):
    """The error gives the bytes that the shape takes and those there are."""
    with pytest.raises(ShapeError, match=r"q4_0 of shape \(2, 32\) takes 36 bytes, got 35"):
        Tensor.from_blocks(np.zeros(35, np.uint8), dtypes.q4_0, (2, 32), cpu)


def test_from_blocks_of_half_a_row(cpu):
    """Rows are whole blocks, even where the total would fit."""
    with pytest.raises(DTypeError, match="16 elements do not fill whole blocks"):
        Tensor.from_blocks(np.zeros(18, np.uint8), dtypes.q4_0, (2, 16), cpu)
    with pytest.raises(DTypeError, match="1 elements do not fill whole blocks"):
        Tensor.from_blocks(np.zeros(18, np.uint8), dtypes.q4_0, (), cpu)


@pytest.mark.parametrize(
    "raw",
    [np.zeros(36, np.uint8)[::2], np.zeros((1, 18), np.uint8), np.zeros(9, np.uint16)],
    ids=["strided", "rank 2", "uint16"],
)
def test_from_blocks_needs_flat_bytes(cpu, raw):
    """A strided array would be copied silently, and writes to the tensor lost."""
    with pytest.raises(DTypeError, match="contiguous 1-D uint8"):
        Tensor.from_blocks(raw, dtypes.q4_0, (32,), cpu)


# -- other devices -------------------------------------------------------------


def test_copies_to_and_from_a_device(cpu, fakes):
    """What goes to another device comes back equal, in memory of its own."""
    device = fakes.device(fakes.copy)
    array = count(3, 4).T
    there = Tensor.from_numpy(array, device)
    assert (there.shape, there.is_contiguous, there.device) == ((4, 3), True, device)
    np.testing.assert_array_equal(there.numpy(), array)
    np.testing.assert_array_equal(there.transpose(0, 1).numpy(), array.T)
    back = there.narrow(0, 1, 2).to(cpu)
    np.testing.assert_array_equal(back.numpy(), array[1:3])
    assert there.to(device) is there
    there.assign(array + 1)
    np.testing.assert_array_equal(there.numpy(), array + 1)
    assert Tensor.from_numpy(array, cpu).to(device).device is device


def test_device_scalars_and_empties(fakes):
    """Rank 0 and size 0 survive the journey."""
    device = fakes.device()
    assert Tensor.from_numpy(np.array(3, np.int32), device).item() == 3
    assert Tensor.from_numpy(np.empty((0, 2), np.float32), device).numpy().shape == (0, 2)


def test_blocks_on_a_device(cpu, blocks, fakes):
    """Block formats move as bytes, also when there are none."""
    tensor, raw = blocks
    device = fakes.device()
    there = tensor.permute(1, 0, 2).to(device)
    np.testing.assert_array_equal(there.numpy(), raw.transpose(1, 0, 2))
    np.testing.assert_array_equal(there.narrow(0, 1, 1).to(cpu).numpy(), raw[None, :, 1])
    empty = Tensor.from_blocks(np.empty(0, np.uint8), dtypes.q4_0, (0, 64), device)
    assert empty.numpy().shape == (0, 36)


def test_device_memory_is_not_the_hosts(fakes):
    """A tensor elsewhere has no host array; the error says how to get a copy."""
    there = Tensor.from_numpy(count(2), fakes.device())
    with pytest.raises(DTypeError, match=r"<Tensor 2 f32 on fake:0> has no host memory: use \.n"):
        _ = there.array
    assert there.narrow(0, 1, 1).ptr == there.ptr + 4


# -- prepared weights ----------------------------------------------------------


def test_with_prepared_adds(cpu):
    """Each plugin's prepared form is kept beside the others; the tensor stays as it was."""
    tensor = Tensor.from_numpy(count(2), cpu)
    packed = tensor.with_prepared({"a": 1}).with_prepared({"b": 2})
    assert dict(packed.prepared) == {"a": 1, "b": 2}
    assert dict(tensor.prepared) == {}
    assert np.shares_memory(packed.numpy(), tensor.numpy())


def test_sizes_as_one_sequence(cpu):
    """Views take sizes one by one, or as one tuple or list, as numpy and torch do."""
    x = Tensor.from_numpy(count(2, 3), cpu)
    assert x.reshape((3, 2)).shape == x.reshape([3, -1]).shape == (3, 2)
    assert x.permute((1, 0)).strides == x.permute(1, 0).strides == (1, 3)
    assert x.broadcast_to((4, 2, 3)).shape == (4, 2, 3)
    assert x.narrow(0, 0, 1).narrow(1, 0, 1).reshape(()).shape == ()


@pytest.mark.parametrize("sizes", [np.array([3, 2]), range(3, 1, -1), [3, 2]], ids=repr)
def test_sizes_of_any_sequence(cpu, sizes):
    """Numpy's numbers and arrays, and ranges too; what is made has Python's numbers."""
    x = Tensor.from_numpy(count(2, 3), cpu)
    assert x.reshape(sizes).shape == x.reshape(np.int64(3), -1).shape == (3, 2)
    for shape in ([2, 3], np.array([2, 3])):
        assert repr(cpu.empty(shape, dtypes.f32).shape) == "(2, 3)"


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.reshape(6.0),
        lambda x: x.reshape(None),
        lambda x: x.reshape(x),
        lambda x: x.permute("a", 0),
        lambda x: x.permute(((1, 0),)),
        lambda x: x.broadcast_to(2.0, 2, 3),
        lambda x: x.narrow(0, 0, 1.0),
        lambda x: x.narrow(0, None, 1),
        lambda x: x.unflatten(1, "3"),
        lambda x: x.device.empty((2.0, 3), x.dtype),
    ],
)
def test_sizes_that_are_no_whole_numbers(cpu, view):
    """They are refused by name, whatever was asked for before."""
    cpu.empty((2, 3), dtypes.f32)
    with pytest.raises(ShapeError, match=r"has a size that is no whole number"):
        view(Tensor.from_numpy(count(2, 3), cpu))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.assign([1]),
        lambda x: Tensor.from_blocks(b"123", dtypes.q4_0, (1, 32), x.device),
        lambda x: Tensor.from_numpy([1], x.device),
    ],
    ids=["assign", "from_blocks", "from_numpy"],
)
def test_no_array(cpu, make):
    """What is given instead of an array is named."""
    with pytest.raises(DTypeError, match=r": a (list|bytes) is no numpy array: np\.asarray makes"):
        make(Tensor.from_numpy(count(1), cpu))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_tensors_are_no_pickles(cpu, way):
    """Neither are they copied as Python objects are: what does either is told."""
    with pytest.raises(UsageError, match=r"ops\.copy copies it, and \.numpy\(\) can be pickled"):
        way(Tensor.from_numpy(count(2), cpu))
