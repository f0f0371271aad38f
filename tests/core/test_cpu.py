from __future__ import annotations

import builtins
import gc
import threading

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.cpu import POOLED_FROM
from propolis.cpu import CpuDevice
from propolis.cpu import CpuMemory
from propolis.cpu import cpu_properties
from propolis.errors import DTypeError
from propolis.errors import OutOfMemoryError
from propolis.errors import ShapeError
from propolis.layout import Layout
from propolis.storage import CpuStorage


LARGE = 256 * 1024


@pytest.fixture
def memory():
    """Host memory with an empty pool."""
    return CpuMemory()


def large(device: CpuDevice) -> Tensor:
    """A tensor whose memory comes from the pool."""
    return device.empty((LARGE,), dtypes.u8)


# -- the pool ------------------------------------------------------------------


def test_a_freed_buffer_is_used_again(memory):
    """The next storage of about that size gets the freed one's pages."""
    first = memory.allocate(LARGE)
    address = first.ptr
    del first
    assert memory.allocate(LARGE - 1000).ptr == address
    assert memory.allocate(LARGE).nbytes >= LARGE


def test_two_storages_never_share(memory):
    """One freed buffer serves one storage."""
    del_me = memory.allocate(LARGE)
    del del_me
    first, second = memory.allocate(LARGE), memory.allocate(LARGE)
    assert not np.shares_memory(first.bytes, second.bytes)


@pytest.mark.parametrize(
    "look",
    [
        lambda t: t.array,
        lambda t: t.numpy()[100:200],
        lambda t: memoryview(t.array),
        np.from_dlpack,
        lambda t: t.storage.bytes,
        lambda t: t.storage.buffer,
        lambda t: t.array.view(np.float32).reshape(4, -1).T,
        lambda t: np.lib.stride_tricks.as_strided(t.array, (3,), (8,)),
        lambda t: t.array.ctypes.data_as(__import__("ctypes").c_void_p),
        lambda t: t.narrow(0, 5, 7),
        lambda t: t.reshape(2, -1).array[1],
    ],
)
def test_memory_that_a_view_shows_is_never_recycled(look):
    """Whatever way memory is still seen, no new tensor gets it while the view lives."""
    device = CpuDevice()
    tensor = large(device)
    tensor.array[...] = 7
    address = tensor.ptr
    view = look(tensor)
    del tensor
    gc.collect()
    others = [large(device) for _ in range(4)]
    for other in others:
        assert other.ptr != address
        other.array[...] = 9
    if isinstance(view, np.ndarray) and view.dtype == np.uint8:
        assert (view.reshape(-1)[:8] == 7).all()
    del view


def test_the_pool_is_bounded(memory, monkeypatch):
    """Buffers beyond the limit go back to the system."""
    monkeypatch.setattr("propolis.storage.POOL_LIMIT", 2 * LARGE)
    storages = [memory.allocate(LARGE) for _ in range(5)]
    del storages
    assert memory._pool.nbytes == 2 * LARGE
    assert sum(map(len, memory._pool._free.values())) == 2


def test_small_memory_is_left_to_malloc(memory):
    """Below the threshold nothing is pooled."""
    del_me = memory.allocate(POOLED_FROM - 1)
    del del_me
    assert memory._pool._free == {}


def test_a_taken_pool_is_left_alone(memory):
    """Nobody waits for the lock: a destructor may run inside the pool's own methods."""
    storage = memory.allocate(LARGE)
    with memory._pool._lock:
        fresh = memory.allocate(LARGE)
        del storage  # would wait for itself, if give() waited
    assert memory._pool._free == {}
    assert fresh.nbytes >= LARGE


def test_the_pool_from_many_threads(memory):
    """Threads never get one buffer twice, and the count of bytes stays true."""
    clashes = []

    def work(number: int) -> None:
        for _ in range(300):
            storage = memory.allocate(LARGE)
            storage.bytes[:64] = number
            storage.bytes[-64:] = number
            if not (storage.bytes[:64] == number).all():
                clashes.append(number)
            del storage

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    pool = memory._pool
    assert pool.nbytes == sum(b.nbytes for free in pool._free.values() for b in free)


def test_a_tensor_at_exit_is_quiet(python):
    """The interpreter takes modules apart before the last tensor; nothing may complain."""
    done = python(
        """
        from propolis import dtypes
        from propolis.cpu import CpuDevice
        keep = CpuDevice().empty((1 << 20,), dtypes.f32)
        import propolis
        propolis.kept = keep
        """
    )
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


# -- allocation ----------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [2**50, 2**62, 2**63, 2**80])
def test_more_than_there_is(memory, nbytes):
    """Any impossible size is out of memory, never an error of numpy's."""
    with pytest.raises(OutOfMemoryError, match=f"cpu: {nbytes} bytes are more than the free"):
        memory.allocate(nbytes)


def test_a_tensor_that_is_too_large(cpu):
    """Very large shapes end in the same error."""
    with pytest.raises(OutOfMemoryError):
        cpu.empty((2**40, 2**40), dtypes.f32)


def test_an_empty_tensor_with_a_size_no_array_has(cpu):
    """No elements, but a dimension beyond numpy's: a clear error."""
    with pytest.raises(ShapeError, match=r"cpu: shape \(0, 1180591620717411303424\) of f32"):
        cpu.empty((0, 2**70), dtypes.f32)
    for length in (1, 100_000):
        with pytest.raises(ShapeError, match=r"cpu: shape \(1, 1, .* of f32: maximum"):
            cpu.empty((1,) * 65 + (length,), dtypes.f32)


@pytest.mark.parametrize("dtype", ["f32", np.float32, None])
def test_a_dtype_of_others(cpu, dtype):
    """What is no dtype of ours is named, and where ours are."""
    with pytest.raises(DTypeError, match=r"dtype is .*; supported: those of propolis\.dtypes"):
        cpu.empty((2,), dtype)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 700])
def test_empty_tensors_of_every_dtype(cpu, dtype, rows):
    """Every dtype can be allocated, small and pooled, and its array fits the shape."""
    tensor = cpu.empty((rows, 256), dtype)
    assert tensor.array.nbytes == tensor.nbytes == dtype.nbytes(rows * 256)
    assert tensor.storage.nbytes >= tensor.nbytes
    tensor.array[...] = 0


def test_blocks_are_whole_rows(cpu, fakes):
    """A row of half a block is refused on every device, even where the total would fit."""
    for device in (cpu, fakes.device()):
        with pytest.raises(DTypeError, match="16 elements do not fill whole blocks"):
            device.empty((2, 16), dtypes.q4_0)
        with pytest.raises(DTypeError, match="1 elements do not fill whole blocks"):
            device.empty((), dtypes.q4_0)


def test_a_shape_may_come_from_numpy(cpu):
    """Sizes that numpy computed are sizes."""
    tensor = cpu.empty((np.int64(2), 3), dtypes.f32)
    assert tensor.shape == (2, 3)


# -- copies --------------------------------------------------------------------


def test_copies_at_an_offset(memory):
    """Bytes go where they should and nowhere else."""
    storage = memory.allocate(16)
    storage.bytes[:] = 1
    memory.copy_in(storage, 4, np.full(3, 9, np.uint8))
    out = np.empty(6, np.uint8)
    memory.copy_out(out, storage, 3)
    assert out.tolist() == [1, 9, 9, 9, 1, 1]
    memory.synchronize()


def test_storage_of_another_kind(memory, fakes):
    """A device's storage is no host memory."""
    foreign = fakes.Memory().allocate(8)
    with pytest.raises(TypeError, match="FakeStorage is not host storage"):
        memory.copy_in(foreign, 0, np.zeros(1, np.uint8))


# -- the device ----------------------------------------------------------------


def test_properties():
    """Name, architecture and memory are those of this machine."""
    properties = cpu_properties()
    assert (properties.id, properties.kind, properties.index) == ("cpu", "cpu", 0)
    assert properties.name
    assert properties.arch
    assert properties.total_memory > 2**20


def test_name_without_procfs(monkeypatch):
    """Where procfs is hidden, the machine type is name enough."""
    real = builtins.open

    def hidden(file, *args, **kwargs):
        if file == "/proc/cpuinfo":
            raise PermissionError(file)
        return real(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", hidden)
    assert cpu_properties().name


def test_name_where_procfs_has_none(monkeypatch, tmp_path):
    """ARM kernels print no model name."""
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\n")
    real = builtins.open
    monkeypatch.setattr(
        builtins, "open", lambda f, *a, **k: real(file if f == "/proc/cpuinfo" else f, *a, **k)
    )
    assert cpu_properties().name


def test_repr_and_threads(cpu):
    """What people see of a device; it uses the cores it may."""
    assert repr(cpu).startswith("<Device cpu ")
    assert cpu.threads >= 1
    cpu.synchronize()


def test_results_do_not_alias_inputs(cpu):
    """Two results of pooled size are two tensors."""
    x = Tensor.from_numpy(np.ones(LARGE, np.float32), cpu)
    first, second = ops.add(x, x), ops.mul(x, x)
    assert not np.shares_memory(first.array, second.array)
    assert first.array[0] == 2.0
    storage = CpuStorage(np.zeros(8, np.float32))
    assert Tensor(storage, Layout((8,), (1,)), dtypes.f32, cpu).ptr == storage.ptr
