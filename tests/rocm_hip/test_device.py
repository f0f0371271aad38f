import gc
import json
import threading
import time

import numpy as np
import pytest

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dlpack
from propolis import dtypes
from propolis.errors import DeviceError
from propolis.errors import DeviceNotFoundError
from propolis.errors import OutOfMemoryError
from propolis.later import numpy_later
from propolis_rocm_hip import hardware
from propolis_rocm_hip import staging
from propolis_rocm_hip.device import RocmProvider


def upload(device, array):
    """A tensor on the device."""
    return Tensor.from_numpy(np.asarray(array), device)


# -- who it is ----------------------------------------------------------------------


def test_properties(device):
    """What the device says of itself, as core and as kernels need it."""
    assert (device.id, device.kind, device.properties.arch) == ("rocm:0", "rocm", "hipsim32")
    assert (device.warp_size, device.hardware.max_threads) == (32, 1024)
    assert device.compute_units > 0
    assert device.properties.extra["target"] == "hipsim32"
    assert device.properties.total_memory == 8 << 30
    assert not device.hardware.integrated


def test_available_memory(device):
    """What the driver says is free, and what the allocator holds for nobody."""
    before = device.memory.available()
    assert 0 < before <= device.properties.total_memory
    tensor = device.empty((64 << 20,), dtypes.u8)
    assert 64 << 20 == before - device.memory.available()
    del tensor
    assert before == device.memory.available()
    with pytest.raises(OutOfMemoryError, match=r"GB are free on rocm:0: take less"):
        device.expect_room(before + 1, "this", "take less")


@pytest.mark.slow
def test_both_warp_sizes(simulate):
    """The architecture, the warp size and what kernels are compiled with belong together."""
    code = """
    y = upload(np.zeros(1, np.int32))
    kernel("warp")((1, 1, 1), (1, 1, 1), 0, y.ptr)
    print(device.properties.arch, device.warp_size, y.item())
    """
    assert simulate(code, HIPSIM_WARP="32") == "hipsim32 32 32007"
    assert simulate(code, HIPSIM_WARP="64") == "hipsim64 64 64007"


def test_a_simulated_card_says_so(device):
    """Its reports are no evidence of hardware; those of an AMD GPU are."""
    assert "hipsim, host flavour" in device.properties.extra["simulator"]
    assert hardware._played("gfx90a:sramecc+:xnack-") == {}
    assert "NVIDIA" in hardware._played("sm_90")["simulator"]


def test_a_device_that_is_not_there(device):
    """The number of those that are is in the message."""
    with pytest.raises(DeviceNotFoundError, match="no device rocm:1: 1 visible"):
        RocmProvider(Config.load()).open(1)


def test_core_opens_it(device, cli):
    """The runtime finds the plugin by itself, lists the device and opens it."""
    runtime = Runtime.start()
    assert [p.id for p in runtime.devices()] == ["cpu", "rocm:0"]
    opened = runtime.device("rocm")
    x = upload(opened, np.float32([1, 2, 3]))
    assert x.numpy().tolist() == [1, 2, 3]
    del x
    code, out, _ = cli("devices", "--json")
    assert code == 0
    assert json.loads(out)[1]["warp_size"] == "32"


def test_doctor_on_a_machine_with_a_gpu(device, cli):
    """The device and its memory are listed; the library is named."""
    _, out, _ = cli("doctor", "--json")
    found = {f["name"]: f for f in json.loads(out)}
    assert found["rocm_hip.devices"]["status"] == "ok"
    assert "rocm:0 HIP simulator" in found["rocm_hip.devices"]["summary"]
    assert "8.0 GiB dedicated" in found["rocm_hip.devices"]["summary"]
    assert "hipsim" in found["rocm_hip.libraries"]["summary"]
    assert found["plugin.rocm_hip"]["status"] == "ok"


# -- memory and copies ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (7, 5), (1 << 20,)])
def test_there_and_back(device, dtype, shape):
    """What is copied to the device comes back bit for bit, empty tensors too."""
    array = (np.arange(int(np.prod(shape)), dtype=np.int64) % 251).astype(dtype).reshape(shape)
    assert np.array_equal(upload(device, array).numpy(), array)


def test_more_than_the_staging_ring_holds(device):
    """A copy that goes round the ring several times arrives whole."""
    array = np.random.default_rng(1).integers(0, 256, 3 * staging.RING + 12345, np.uint8)
    assert np.array_equal(upload(device, array).numpy(), array)


def test_many_small_copies(device):
    """Copies of all sizes, more than the ring has room for at once, stay apart."""
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 256, n, np.uint8) for n in rng.integers(1, 1 << 20, 60)]
    tensors = [upload(device, array) for array in arrays]
    for tensor, array in zip(tensors, arrays, strict=True):
        assert np.array_equal(tensor.numpy(), array)


def test_a_copy_does_not_wait_and_does_not_look_back(simulate):
    """It returns before the device has read, and the caller may overwrite its array at once."""
    code = """
    import time
    array = np.arange(1000, dtype=np.float32)
    x = device.empty((1000,), dtypes.f32)
    upload([0.0])  # the ring is there
    device.synchronize()
    copied, start = device.event(), time.perf_counter()
    x.assign(array)
    copied.record()
    waited = copied.done()
    array[:] = -1
    same = np.array_equal(x.numpy(), np.arange(1000))
    print(waited, time.perf_counter() - start > 0.4, same)
    """
    assert simulate(code, HIPSIM_SLOW_COPIES="250000") == "False True True"


def test_what_is_read_later(simulate):
    """A copy to the host has what was there when it began, and waits for nothing queued since."""
    code = """
    import time
    from propolis.later import numpy_later
    x = upload(np.arange(1000, dtype=np.float32))
    found = numpy_later(x)
    for value in (1, 2, 3):
        x.assign(np.full(1000, value, np.float32))
    start = time.perf_counter()
    first = found()
    early = time.perf_counter() - start
    device.synchronize()
    late = time.perf_counter() - start
    print(np.array_equal(first, np.arange(1000)), x.numpy()[0], late - early > 0.1)
    """
    assert simulate(code, HIPSIM_SLOW_COPIES="200000") == "True 3.0 True"


def test_what_nobody_reads(device):
    """A copy that is let go leaves its room to the next; those that are kept have one each."""
    x, later = upload(device, np.arange(12, dtype=np.int32)), []
    for number in range(9):
        x.assign(np.arange(12, dtype=np.int32) + number)
        found = numpy_later(x.narrow(0, 2, 5))
        later += [found] if number % 2 else []
    for number, found in enumerate(later):
        for _ in range(2):
            assert found().tolist() == [2 * number + 1 + i for i in range(2, 7)]
    del later, found
    assert device.memory._returning.copy(x.ptr, 4)().tolist() == [8, 0, 0, 0]
    assert len(device.memory._returning._rooms) <= 6


def test_what_is_not_read_later(device):
    """What is strided, in blocks or large is read at once, as on the CPU."""
    x = upload(device, np.zeros((40, 60), np.float32))
    blocks = Tensor.from_blocks(np.zeros(18, np.uint8), dtypes.q4_0, (1, 32), device)
    assert numpy_later(x) is numpy_later(x.narrow(0, 0, 3).transpose(0, 1)) is None
    assert numpy_later(blocks) is numpy_later(Tensor.from_numpy(np.zeros(3))) is None
    assert numpy_later(x.narrow(0, 0, 3))().shape == (3, 60)


def test_a_slice_of_a_tensor(device):
    """Offsets count on both ways."""
    x = upload(device, np.zeros(10, np.float32))
    x.narrow(0, 3, 4).assign(np.float32([1, 2, 3, 4]))
    assert x.numpy().tolist() == [0, 0, 0, 1, 2, 3, 4, 0, 0, 0]
    assert x.narrow(0, 4, 2).numpy().tolist() == [2, 3]


def test_memory_comes_back(device):
    """What tensors held is free when they are gone, whoever collects them."""
    before = device.pool.statistics().allocated
    x = upload(device, np.zeros(1 << 20, np.float32))
    assert device.pool.statistics().allocated == before + (4 << 20)
    del x
    assert device.pool.statistics().allocated == before


def test_trimming(device):
    """The cache goes back to the device, and the device has more free memory then."""
    upload(device, np.zeros(64 << 20, np.uint8))
    free, total = device.context.call("hipMemGetInfo")
    assert device.pool.trim() >= 64 << 20
    assert device.context.call("hipMemGetInfo")[0] >= free + (64 << 20)
    assert total == 8 << 30


def test_too_much(device):
    """The error names the sizes; afterwards everything works."""
    with pytest.raises(OutOfMemoryError, match=r"rocm:0: 1024\.0 GiB do not fit: "):
        device.empty((1 << 40,), dtypes.u8)
    assert upload(device, [1.0]).item() == 1.0


@pytest.mark.slow
def test_direct_allocations(simulate):
    """With them the simulator sees a kernel that writes past the end of its tensor."""
    code = """
    x = upload(np.zeros(4, np.float32))
    kernel("scale")((1, 1, 1), (5, 1, 1), 0, x.ptr, x.ptr, 5, 1.0)
    failure(device.synchronize)
    """
    assert simulate(code, HIPSIM_ALIGNMENT="16") == "no error"
    said = simulate(code, HIPSIM_ALIGNMENT="16", PROPOLIS_DIRECT_ALLOCATIONS="1")
    assert said.startswith("KernelFaultError: rocm:0: hipStreamSynchronize: hipErrorIllegalAddress")


def test_pinned_memory(device):
    """It can be used as any array, and is freed with its last view."""
    array = device.pinned_empty(4096)
    array[:] = 7
    view = array[10:20].view(np.uint8)
    del array
    gc.collect()
    assert view.tolist() == [7] * 10
    x = upload(device, view)
    assert x.numpy().tolist() == [7] * 10
    assert device.pinned_empty(0).size == 0


def test_dlpack(device):
    """Another library gets the device's own memory, written whole, until it lets go of it."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = upload(device, array).narrow(0, 1, 2)
    ptr, before = tensor.ptr, device.pool.statistics().allocated
    assert tensor.__dlpack_device__() == (10, 0)
    capsule = tensor.__dlpack__(max_version=(1, 0), stream=0)
    struct = dlpack._managed(capsule).dl_tensor
    assert (struct.data, struct.device_type, struct.device_id) == (ptr, 10, 0)
    assert np.array_equal(Tensor.from_dlpack(tensor).numpy(), array[1:])
    del tensor
    assert device.pool.statistics().allocated == before
    del capsule, struct
    assert device.pool.statistics().allocated < before


# -- streams and events ---------------------------------------------------------------


def test_events_time_what_lies_between(device, kernels):
    """Seconds on the device, more than nothing and less than we waited."""
    x = upload(device, np.zeros(1 << 16, np.float32))
    scale = device.modules.function(kernels, "scale")
    first, last = device.event(timing=True), device.event(timing=True)
    began = time.perf_counter()
    first.record()
    scale((256, 1, 1), (256, 1, 1), 0, x.ptr, x.ptr, x.numel, 2.0)
    last.record()
    last.synchronize()
    assert last.done()
    assert 0 < last.elapsed(first) < time.perf_counter() - began


def test_events_without_timing_say_so(device):
    """Asking such an event for the time is an error, not a number."""
    first, last = device.event(), device.event()
    first.record()
    last.record()
    device.synchronize()
    with pytest.raises(DeviceError, match="hipEventElapsedTime"):
        last.elapsed(first)


def test_a_stream_waits_for_another(simulate):
    """Work on another stream starts after the event it waits for, and says when it is done."""
    code = """
    other = device.new_stream()
    x = upload(np.arange(1000, dtype=np.float32))
    ready = device.event()
    ready.record()
    other.wait(ready)
    y = device.pinned_empty(4000).view(np.float32)
    device.context.call("hipMemcpyDtoHAsync", y.ctypes.data, x.ptr, y.nbytes, other.handle)
    busy = not other.done()
    other.synchronize()
    print(busy, other.done(), np.array_equal(y, np.arange(1000)))
    """
    assert simulate(code, HIPSIM_SLOW_COPIES="100000") == "True True True"


def test_an_event_that_is_not_done(simulate):
    """It says so without waiting."""
    code = """
    event = device.event()
    x = upload(np.zeros(1000, np.float32))
    event.record()
    print(event.done())
    event.synchronize()
    print(event.done())
    """
    assert simulate(code, HIPSIM_SLOW_COPIES="100000").split() == ["False", "True"]


# -- threads --------------------------------------------------------------------------


def test_threads_share_a_device(device, kernels):
    """Launches of one kernel from many threads keep their arguments apart."""
    scale = device.modules.function(kernels, "scale")
    problems = []

    def work(number):
        x = upload(device, np.full(100, number, np.float32))
        y = device.empty((100,), dtypes.f32)
        for factor in range(1, 40):
            scale((1, 1, 1), (128, 1, 1), 0, y.ptr, x.ptr, 100, float(factor))
            if not np.array_equal(y.numpy(), np.full(100, number * factor, np.float32)):
                problems.append((number, factor))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


# -- two devices ------------------------------------------------------------------------


def test_two_devices(simulate):
    """Each has its memory; a tensor goes from one to the other, in order with both streams."""
    code = """
    from propolis_rocm_hip import peer
    other = provider.open(1)
    x = upload(np.arange(100000, dtype=np.float32))
    kernel("scale")((1000, 1, 1), (100, 1, 1), 0, x.ptr, x.ptr, 100000, 2.0)
    y = peer.copy_to(x, other)
    del x
    z = upload(np.full(100000, -1, np.float32))
    print(y.device.id, np.array_equal(y.numpy(), 2 * np.arange(100000, dtype=np.float32)))
    back = peer.copy_to(y.reshape(100, 1000).narrow(0, 3, 2), device)
    print(back.device.id, back.shape, back.numpy()[0, :2].tolist())
    print(peer.copy_to(other.empty((0,), dtypes.f32), device).shape)
    cpu = Tensor.from_numpy(np.zeros(3))
    failure(peer.copy_to, cpu, device)
    """
    said = simulate(code, HIPSIM_DEVICES="2", HIPSIM_SLOW_COPIES="20000").splitlines()
    assert said[0] == "rocm:1 True"
    assert said[1] == "rocm:0 (2, 1000) [6000.0, 6002.0]"
    assert said[2] == "(0,)"
    assert said[3].startswith("UsageError: peer.copy_to: <Tensor 3 f64 on cpu> is not on an AMD")


def test_no_device_at_all(python, simulator):
    """Nothing is listed, and nothing can be opened."""
    code = """
    from propolis import Config
    from propolis.errors import DeviceNotFoundError
    from propolis_rocm_hip.device import RocmProvider
    provider = RocmProvider(Config.load())
    print(list(provider.enumerate()))
    try: provider.open(0)
    except DeviceNotFoundError as exc: print(exc)
    """
    done = python(code, HIPSIM_DEVICES="0")
    assert done.stdout.splitlines() == [
        "[]",
        "no device rocm:0: 0 visible; `propolis devices` lists them",
    ]
