"""Memory is refused before it is taken."""

from __future__ import annotations

import pytest

from propolis import Config
from propolis import Runtime
from propolis import dtypes
from propolis.cpu import CpuDevice
from propolis.cpu import CpuMemory
from propolis.errors import OutOfMemoryError
from propolis.storage import Memory
from propolis_conformance.testing import FakeDevice


def test_what_fits_is_admitted():
    """As much as is free, to the byte."""
    device = FakeDevice()
    device.memory.capacity = 1000
    taken = device.empty((100,), dtypes.u8)
    device.expect_room(900, "this", "take less")
    with pytest.raises(OutOfMemoryError):
        device.expect_room(901, "this", "take less")
    del taken
    device.expect_room(1000, "this", "take less")


def test_message(monkeypatch):
    """One line: what for, what it needs, what is free and where, what to do."""
    monkeypatch.setattr("propolis.cpu.free_memory", lambda: 2_500_000)
    with pytest.raises(OutOfMemoryError) as caught:
        CpuDevice().expect_room(3_210_000_000, "a context of 9 tokens", "give a smaller one")
    assert str(caught.value) == (
        "a context of 9 tokens needs 3.21 GB of memory, and 2.50 MB are free on cpu: "
        "give a smaller one; PROPOLIS_MEMORY_CHECK=0 tries all the same"
    )


def test_memory_that_cannot_say(monkeypatch):
    """What is not known to be too much is tried."""
    monkeypatch.setattr("propolis.cpu.free_memory", lambda: None)
    CpuDevice().expect_room(1 << 60, "this", "take less")
    device = FakeDevice()
    monkeypatch.setattr(type(device.memory), "available", Memory.available)
    device.expect_room(1 << 60, "this", "take less")


def test_pooled_memory_is_free(monkeypatch):
    """Freed buffers that the CPU keeps are there for who asks."""
    monkeypatch.setattr("propolis.cpu.free_memory", lambda: 7)
    memory = CpuMemory()
    storage = memory.allocate(1 << 20)
    assert 7 == memory.available()
    nbytes = storage.nbytes
    del storage
    assert 7 + nbytes == memory.available()


def test_unchecked(monkeypatch):
    """The setting ``memory_check`` lets everything through."""
    monkeypatch.setattr("propolis.cpu.free_memory", lambda: 1)
    for check in (True, False):
        cpu = Runtime.start(Config(plugins=[], memory_check=check)).cpu
        if check:
            with pytest.raises(OutOfMemoryError):
                cpu.expect_room(2, "this", "take less")
        else:
            cpu.expect_room(2, "this", "take less")


def test_memory_in_cycles_is_room():
    """What nobody can reach any more is collected before anything is refused."""
    device = FakeDevice()
    device.memory.capacity = 1000
    cycle = [device.empty((600,), dtypes.u8)]
    cycle.append(cycle)
    del cycle
    device.expect_room(900, "this", "take less")
