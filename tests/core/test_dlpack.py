"""Memory shared with other libraries by DLPack; tests/rocm_hip has the simulated GPU's."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

from propolis import Device
from propolis import DeviceProperties
from propolis import Tensor
from propolis import dlpack
from propolis import dtypes
from propolis.errors import DTypeError
from propolis.errors import UsageError
from propolis_conformance.testing import FakeMemory
from propolis_conformance.testing import device_view


PLAIN = [d for d in dtypes.ALL if not d.is_block]
# Type codes and bits, from the specification's header.
CODES = {
    "f64": (2, 64),
    "f32": (2, 32),
    "f16": (2, 16),
    "bf16": (4, 16),
    "f8e4m3": (10, 8),
    "f8e5m2": (12, 8),
    "u8": (1, 8),
    "u32": (1, 32),
    "i8": (0, 8),
    "i16": (0, 16),
    "i32": (0, 32),
    "i64": (0, 64),
}


class Other:
    """A tensor of another library: whatever capsule it makes, from wherever it says."""

    def __init__(self, make, device=(1, 0)):
        self._make, self._device = make, device
        self.asked = []

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **wanted):
        self.asked.append(wanted)
        return self._make(**wanted)


@pytest.fixture
def rocm():
    """A device that calls itself a ROCm one, and has checked memory of its own."""
    return Device(DeviceProperties("rocm", 3, "Fake", arch="gfx0"), FakeMemory())


def numbers(*shape, dtype=dtypes.f32):
    """0, 1, 2 ... in that shape."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype.numpy)


class Exported:
    """A tensor's capsule, kept as long as its struct is looked at."""

    def __init__(self, tensor, **arguments):
        self.capsule = tensor.__dlpack__(**{"max_version": (1, 0), **arguments})
        self.managed = dlpack._managed(self.capsule)
        self.struct = self.managed.dl_tensor
        self.flags = getattr(self.managed, "flags", None)


def capsule_of(array, **changes):
    """What numpy exports, with fields of its struct changed."""
    capsule = array.__dlpack__(max_version=(1, 0))
    managed = dlpack._managed(capsule)
    for name, value in changes.items():
        setattr(managed.dl_tensor if hasattr(managed.dl_tensor, name) else managed, name, value)
    return capsule


# -- out ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 9), (2, 0)])
def test_struct(cpu, dtype, version):
    """A capsule says what the specification wants of it, in the layout that it is named after."""
    array = numbers(3, 4, dtype=dtype)
    tensor = Tensor.from_numpy(array, cpu).transpose(0, 1).narrow(0, 1, 2)
    out = Exported(tensor, max_version=version)
    struct = out.struct
    new = version is not None and version[0] > 0
    assert ('"dltensor_versioned"' in repr(out.capsule)) == new
    assert struct.data + struct.byte_offset == tensor.ptr
    assert (struct.device_type, struct.device_id) == tensor.__dlpack_device__() == (1, 0)
    assert (struct.code, struct.bits, struct.lanes) == (*CODES[dtype.name], 1)
    assert [(2, 3), (1, 4)] == [
        tuple((ctypes.c_int64 * 2).from_address(where)) for where in (struct.shape, struct.strides)
    ]
    if new:
        assert (out.managed.major, out.flags) == (1, 0)


@pytest.mark.parametrize("dtype", [d for d in PLAIN if CODES[d.name][0] < 3], ids=str)
def test_numpy_takes_it(cpu, dtype):
    """numpy, which shares nothing with our reading, sees the same elements in the same memory."""
    array = numbers(2, 3, dtype=dtype)
    theirs = np.from_dlpack(Tensor.from_numpy(array, cpu).transpose(0, 1))
    assert np.shares_memory(theirs, array)
    np.testing.assert_array_equal(theirs, array.T)
    theirs[0, 0] = 9
    assert array[0, 0] == 9


@pytest.mark.parametrize("take", [True, False], ids=["taken", "never taken"])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_memory_lives_as_long_as_the_capsule(cpu, take, version):
    """The consumer's array is enough to keep the memory; a capsule that nobody took frees it."""
    array = numbers(3, dtype=dtypes.bf16)
    gone = weakref.ref(array)
    capsule = Tensor.from_numpy(array, cpu).__dlpack__(max_version=version)
    kept = Tensor.from_dlpack(Other(lambda held=capsule, **_: held), cpu) if take else None
    del array
    assert gone() is not None
    del capsule
    assert (gone() is not None) == take
    del kept
    assert gone() is None


def test_read_only(cpu):
    """It is said from version 1 on; a consumer that cannot be told gets a copy or nothing."""
    array = numbers(2)
    array.flags.writeable = False
    tensor = Tensor.from_numpy(array, cpu)
    assert Exported(tensor).flags == 1
    assert not np.from_dlpack(tensor).flags.writeable
    with pytest.raises(BufferError, match=r"is read-only, .* max_version=\(1, 0\) or copy=True"):
        tensor.__dlpack__()
    tensor.__dlpack__(copy=True)
    theirs = Tensor.from_dlpack(tensor, cpu)
    assert np.shares_memory(theirs.numpy(), array)
    with pytest.raises(UsageError, match="read-only"):
        theirs.assign(numbers(2))


def test_copies_out(cpu):
    """copy=True gives memory that is the consumer's alone, and says so; False is always met."""
    array = numbers(2, 3)
    tensor = Tensor.from_numpy(array, cpu)
    assert not np.shares_memory(np.from_dlpack(tensor, copy=True), array)
    assert np.shares_memory(np.from_dlpack(tensor, copy=False), array)
    assert Exported(tensor, copy=True).flags == 2


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1, 1)])
def test_scalars_and_empties(cpu, shape):
    """Rank 0 and size 0 go out and come in."""
    array = numbers(*shape, dtype=dtypes.bf16)
    found = Tensor.from_dlpack(Tensor.from_numpy(array, cpu), cpu)
    assert (found.shape, found.dtype) == (shape, dtypes.bf16)
    np.testing.assert_array_equal(found.numpy(), array)


def test_what_dlpack_cannot_say(cpu, fakes):
    """Block formats and devices without a number are refused with the way out."""
    blocks = Tensor.from_blocks(np.zeros(18, np.uint8), dtypes.q4_0, (32,), cpu)
    for call in (blocks.__dlpack__, blocks.__dlpack_device__, lambda: np.from_dlpack(blocks)):
        with pytest.raises(BufferError, match=r"has no block formats: ops\.dequantize gives"):
            call()
    there = Tensor.from_numpy(numbers(2), fakes.device())
    with pytest.raises(BufferError, match=r"fake:0> .*the devices cpu, rocm: .*\.numpy\(\)"):
        np.from_dlpack(there)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"stream": 0}, UsageError, "stream is 0; the CPU has no streams: supported is None"),
        ({"dl_device": (2, 0)}, BufferError, r"device \(2, 0\); supported: \[\(1, 0\)\]"),
    ],
)
def test_arguments(cpu, arguments, error, message):
    """The CPU has no streams, and goes to no other device."""
    with pytest.raises(error, match=message):
        Tensor.from_numpy(numbers(2), cpu).__dlpack__(**arguments)


# -- from a ROCm device -----------------------------------------------------------


def test_rocm_struct(rocm):
    """The device's own memory goes out, once what is queued there is done."""
    tensor = Tensor.from_numpy(numbers(3, 4, dtype=dtypes.bf16), rocm).transpose(0, 1)
    view = tensor.narrow(0, 1, 2)
    assert view.__dlpack_device__() == (10, 3)
    waits = rocm.memory.waits
    out = Exported(view)
    struct = out.struct
    assert rocm.memory.waits == waits + 1
    assert (struct.device_type, struct.device_id) == (10, 3)
    assert struct.data + struct.byte_offset == view.ptr
    assert (struct.code, struct.bits, struct.ndim) == (4, 16, 2)


@pytest.mark.parametrize(("stream", "waits"), [(None, 1), (0, 1), (1 << 40, 1), (-1, 0)])
def test_rocm_streams(rocm, stream, waits):
    """The consumer may read on any stream at once, unless it says that it waits itself."""
    tensor = Tensor.from_numpy(numbers(2), rocm)
    before = rocm.memory.waits
    tensor.__dlpack__(stream=stream)
    assert rocm.memory.waits == before + waits


@pytest.mark.parametrize("stream", [1, 2, -2, "0", True])
def test_rocm_streams_that_are_none(rocm, stream):
    """1 and 2 are CUDA's."""
    with pytest.raises(UsageError, match=r"supported: None, -1 \(do not wait\), 0, or a handle"):
        Tensor.from_numpy(numbers(2), rocm).__dlpack__(stream=stream)


def test_rocm_memory_lives_as_long_as_the_capsule(rocm):
    """The memory goes back to the device's allocator with the capsule."""
    tensor = Tensor.from_numpy(numbers(2), rocm)
    capsule = tensor.__dlpack__(max_version=(1, 0))
    del tensor
    gc.collect()
    assert len(rocm.memory.live) == 1
    del capsule
    assert not rocm.memory.live


def test_rocm_to_the_cpu(rocm, cpu):
    """A consumer that asks for the CPU gets a copy there, which copy=False forbids."""
    tensor = Tensor.from_numpy(numbers(2, 3, dtype=dtypes.bf16), rocm)
    out = Exported(tensor, dl_device=(1, 0))
    assert (out.struct.device_type, out.flags) == (1, 2)
    with pytest.raises(BufferError, match="reaches the CPU by a copy alone: leave out copy=F"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(UsageError, match="the CPU has no streams"):
        tensor.__dlpack__(dl_device=(1, 0), stream=0)
    found = Tensor.from_dlpack(tensor, cpu)
    assert (found.device, found.dtype) == (cpu, dtypes.bf16)
    np.testing.assert_array_equal(found.numpy(), tensor.numpy())
    with pytest.raises(ValueError, match=r"device \(10, 3\) reaches the CPU by a copy alone"):
        Tensor.from_dlpack(tensor, cpu, copy=False)


def test_rocm_copies(fakes):
    """copy=True gives other memory of the same device."""
    device = fakes.device(fakes.copy)
    device.kind = "rocm"  # what the fake's ops run on stays the fake
    tensor = Tensor.from_numpy(numbers(2, 3), device)
    out = Exported(tensor, copy=True)
    assert out.struct.data != tensor.ptr
    assert out.flags == 2
    assert len(device.memory.live) == 2
    assert device_view(tensor).tolist() == [[0, 1, 2], [3, 4, 5]]


# -- in -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_every_dtype_comes_in(cpu, dtype, version):
    """What others export is taken in the same memory, strides and all."""
    array = numbers(4, 6, dtype=dtype)
    exporter = Tensor.from_numpy(array[1:, ::2], cpu)
    taken = Tensor.from_dlpack(Other(lambda **_: exporter.__dlpack__(max_version=version)), cpu)
    assert (taken.dtype, taken.shape, taken.strides) == (dtype, (3, 3), (6, 2))
    assert taken.ptr == exporter.ptr
    np.testing.assert_array_equal(taken.numpy(), array[1:, ::2])


def test_what_is_asked_of_others(cpu):
    """A producer is told our version, and more where it matters; an old one is told nothing."""
    array = numbers(2)
    other = Other(lambda **_: array.__dlpack__())
    Tensor.from_dlpack(other, cpu)
    Tensor.from_dlpack(other, cpu, copy=False)
    assert other.asked == [{"max_version": (1, 0)}, {"max_version": (1, 0), "copy": False}]
    old = Other(array.__dlpack__)
    assert np.shares_memory(Tensor.from_dlpack(old, cpu).numpy(), array)
    far = Other(lambda **_: array.__dlpack__(), device=(2, 1))
    Tensor.from_dlpack(far, cpu)
    assert far.asked == [{"max_version": (1, 0), "dl_device": (1, 0)}]


def test_copies_in(cpu, fakes):
    """copy=True shares nothing; copy=False is an error where memory cannot be shared."""
    array = numbers(3)
    assert not np.shares_memory(Tensor.from_dlpack(array, cpu, copy=True).numpy(), array)
    assert np.shares_memory(Tensor.from_dlpack(array, cpu, copy=False).numpy(), array)
    np.testing.assert_array_equal(Tensor.from_dlpack(array[::-1], cpu).numpy(), array[::-1])
    for source, device in ((array[::-1], cpu), (array, fakes.device())):
        with pytest.raises(ValueError, match="cannot share its memory: leave out copy=False"):
            Tensor.from_dlpack(source, device, copy=False)
    assert Tensor.from_dlpack(array, fakes.device()).numpy().tolist() == [0, 1, 2]


def test_a_deleter_finds_its_struct_as_it_was(cpu):
    """The consumer's owner sees the dtype that it wrote when it frees the memory."""
    array = numbers(2, dtype=dtypes.bf16)
    out = Exported(Tensor.from_numpy(array, cpu))
    taken = Tensor.from_dlpack(Other(lambda **_: out.capsule), cpu)
    assert (out.struct.code, out.struct.bits) == CODES["bf16"]
    assert taken.dtype is dtypes.bf16


@pytest.mark.parametrize(
    ("array", "changes", "message"),
    [
        (np.zeros(2, bool), {}, "elements are bool, 8 bits; supported: f64, f32, f16, bf16"),
        (np.zeros(2, np.complex64), {}, "elements are complex, 64 bits; supported"),
        (np.zeros(2, np.uint16), {}, "elements are uint, 16 bits; supported"),
        (np.zeros(2, np.uint8), {"code": 13}, "elements are float8_e5m2fnuz, 8 bits"),
        (np.zeros(2, np.uint8), {"code": 99}, "elements are of type code 99, 8 bits"),
        (np.zeros(2, np.float32), {"lanes": 4}, "elements are float, 32 bits in 4 lanes"),
    ],
)
def test_elements_without_a_dtype(cpu, array, changes, message):
    """Others' elements that have no dtype here are named, with those that have; nothing leaks."""
    before = sys.getrefcount(array)
    with pytest.raises(DTypeError, match=f"from_dlpack: {message}.*: cast them first") as caught:
        Tensor.from_dlpack(Other(lambda **_: capsule_of(array, **changes)), cpu)
    del caught
    gc.collect()
    assert sys.getrefcount(array) == before


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([1.0], DTypeError, "a list has no __dlpack__; supported: tensors and arrays"),
        (np.ma.array([1.0], mask=[True]), DTypeError, "a MaskedArray has no __dlpack__; supp"),
        (Other(lambda **_: "x"), BufferError, "gave 'x', not a capsule named dltensor or"),
        (
            Other(lambda **_: capsule_of(np.zeros(2), major=2, minor=5)),
            BufferError,
            "DLPack version 2.5 is not supported; supported: 0 and 1",
        ),
        (
            Other(lambda: np.zeros(2).__dlpack__(), device=(2, 0)),
            BufferError,
            r"a Other on DLPack device \(2, 0\) gives no copy on the CPU .*: copy it there first",
        ),
    ],
)
def test_what_cannot_be_taken(cpu, source, error, message):
    """What breaks the protocol, or leaves the CPU out, is refused in one line."""
    with pytest.raises(error, match=message) as caught:
        Tensor.from_dlpack(source, cpu)
    assert "\n" not in str(caught.value)


# -- torch, an oracle -------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.usefixtures("oracles")
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_torch(cpu, dtype):
    """Tensors of torch share their memory with ours, both ways, bit for bit."""
    import torch

    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    theirs = theirs.to(getattr(torch, dtype.numpy.name))
    ours = Tensor.from_dlpack(theirs.T, cpu)
    assert (ours.dtype, ours.shape, ours.ptr) == (dtype, (3, 2), theirs.data_ptr())
    np.testing.assert_array_equal(ours.numpy(), numbers(2, 3, dtype=dtype).T)
    back = torch.from_dlpack(ours)
    assert (back.dtype, back.data_ptr(), back.stride()) == (theirs.dtype, theirs.data_ptr(), (1, 3))
    ours.transpose(0, 1).assign(np.ones((2, 3), dtype.numpy))
    assert theirs.float().sum() == 6
    alone = torch.from_dlpack(Tensor.from_numpy(numbers(4, dtype=dtype), cpu))
    gc.collect()
    assert alone.float().tolist() == [0, 1, 2, 3]


@pytest.mark.oracle
@pytest.mark.usefixtures("oracles")
def test_torch_copies(cpu):
    """The copy argument of torch reaches us, and its refusal the user."""
    import torch

    ours = Tensor.from_numpy(np.ones(2, ml_dtypes.bfloat16), cpu)
    assert torch.from_dlpack(ours, copy=True).data_ptr() != ours.ptr
    assert torch.from_dlpack(ours, copy=False).data_ptr() == ours.ptr
    with pytest.raises(BufferError, match="require gradient"):
        Tensor.from_dlpack(torch.zeros(2, requires_grad=True), cpu)
