"""The fake device notices what hardware does not."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis.errors import DeviceError
from propolis.errors import OutOfMemoryError
from propolis_conformance.testing import FakeDevice
from propolis_conformance.testing import FakeMemory
from propolis_conformance.testing import FakeMemoryError
from propolis_conformance.testing import assert_close
from propolis_conformance.testing import assert_on
from propolis_conformance.testing import device_view


@pytest.fixture
def device():
    """A fake device."""
    return FakeDevice()


def test_fresh_memory_is_poisoned(device):
    """Nobody finds zeros by chance, not even where something was freed."""
    for _ in range(2):
        fresh = device.empty((4,), dtypes.u8)
        assert fresh.numpy().tolist() == [0xA5] * 4
        device_view(fresh)[...] = 0
        del fresh


def test_out_of_bounds(device):
    """The message names the range and the size."""
    storage = device.memory.allocate(8)
    with pytest.raises(FakeMemoryError, match=r"bytes \[4, 12\) of the 8 at 0x"):
        device.memory.window(storage, 4, 8)


def test_use_after_free(device):
    """A storage that was freed is not read again."""
    storage = device.memory.allocate(8)
    device.memory.free(storage)
    with pytest.raises(FakeMemoryError, match="use after free"):
        device.memory.window(storage, 0, 8)


def test_guards_and_leaks(device):
    """What is written beside an allocation, and what is never freed, is found."""
    kept = device.memory.allocate(8)
    device.memory.check(live=1)
    with pytest.raises(FakeMemoryError, match=r"1 allocations are live, not 0: 0x\w+ \(8 bytes\)"):
        device.memory.check()
    device.memory.cells[kept.ptr - FakeMemory.BASE + 8] = 0
    with pytest.raises(FakeMemoryError, match="1 bytes outside every allocation"):
        device.memory.check(live=1)


def test_out_of_memory(device):
    """Capacity is what may be live at once, and can be lowered."""
    device.memory.capacity = 16
    first = device.memory.allocate(16)
    with pytest.raises(OutOfMemoryError, match="1 bytes are more than the 0 that are free"):
        device.memory.allocate(1)
    del first
    device.memory.allocate(16)


def test_asynchronous_errors(device):
    """A kernel's failure surfaces at the next wait, once."""
    device.memory.fail_later()
    with pytest.raises(DeviceError, match="a kernel failed"):
        device.synchronize()
    device.synchronize()
    assert device.memory.waits == 2


def test_host_storage_is_foreign(device, cpu):
    """Memory of another device is refused."""
    with pytest.raises(FakeMemoryError, match="CpuStorage is not memory of the fake device"):
        device.memory.window(cpu.memory.allocate(4), 0, 4)


def test_asserts(device, cpu):
    """The helpers say what is off."""
    x = Tensor.from_numpy(np.float32([1, np.nan]), device)
    assert_on(x, device)
    assert_close(x, np.array([1, np.nan]))
    with pytest.raises(AssertionError, match="should be on cpu"):
        assert_on(x, cpu)
    with pytest.raises(AssertionError, match="Tensor 2 f32 on fake:0"):
        assert_close(x, np.array([2, np.nan]))
