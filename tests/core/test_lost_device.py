from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import OutOfMemoryError
from propolis_conformance.testing import FakeDevice


@pytest.fixture
def device(fakes, cpu):
    """A fake device that adds."""
    made = FakeDevice()
    made.table = DispatchTable(made, [fakes.impl()], cpu)
    return made


ZEROS = np.zeros(2, np.float32)
REQUESTS = {
    "allocation": lambda x: x.device.empty((2,), dtypes.f32),
    "upload": lambda x: Tensor.from_numpy(ZEROS, x.device),
    "assign": lambda x: x.assign(ZEROS),
    "download": lambda x: x.numpy(),
    "item": lambda x: x.narrow(0, 0, 1).item(),
    "wait": lambda x: x.device.synchronize(),
    "stream": lambda x: x.device.guarded(x.device.memory.synchronize),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_loss_that_any_request_finds(device, request_):
    """Outside of ops too, it marks the device: ops, graphs and copies raise and ask no driver."""
    x = Tensor.from_numpy(np.float32([1, 2]), device)
    with capture(device) as graph:
        ops.add(x, x)
    error = DeviceLostError("the gpu hangs")
    device.memory.lost = error
    with capture_logs() as logs, pytest.raises(DeviceLostError, match=r"^the gpu hangs$"):
        request_(x)
    assert logs == [
        {
            "event": "device.lost",
            "log_level": "error",
            "device": "fake:0",
            "reason": "the gpu hangs",
        }
    ]
    device.memory.lost = None  # who asked it would get an answer
    waits = device.memory.waits
    later = [
        lambda: ops.add(x, x),
        graph.replay,
        *(lambda r=r: r(x) for r in REQUESTS.values()),
    ]
    for call in later:
        with pytest.raises(DeviceLostError, match="fake:0 is lost: the gpu hangs; only a new proc"):
            call()
    assert device.memory.waits == waits
    assert device.failure is error


def test_a_kernel_that_failed_for_good_is_found_at_the_wait(device):
    """As on hardware: the error comes later, from synchronize."""
    device.memory.fail_later(DeviceLostError("queue error"))
    with pytest.raises(DeviceLostError):
        device.synchronize()
    assert str(device.failure) == "queue error"


@pytest.mark.parametrize("error", [DeviceError("busy"), OutOfMemoryError("full")])
def test_other_errors_lose_nothing(device, error):
    """They pass, and the device goes on."""
    device.memory.fail_later(error)
    with pytest.raises(type(error)):
        device.synchronize()
    device.synchronize()
    assert device.failure is None


def test_plugins_may_say_so_themselves(device):
    """The first reason is kept."""
    device.lost(DeviceLostError("first"))
    device.lost(DeviceLostError("second"))
    assert str(device.failure) == "first"


def test_a_device_may_be_lost_before_it_has_a_table():
    """While it is being opened."""
    device = FakeDevice()
    device.memory.lost = DeviceLostError("gone")
    with pytest.raises(DeviceLostError):
        device.empty((1,), dtypes.f32)
    assert device.failure is device.memory.lost


def test_a_fallback_that_finds_it(device):
    """The copies of the CPU rung go the same way; nobody is quarantined for it."""
    x = Tensor.from_numpy(np.float32([1, 2]), device)
    out = device.empty((2,), dtypes.f32)
    device.memory.lost = DeviceLostError("gone")
    with pytest.raises(DeviceLostError, match=r"^gone$"):
        ops.mul.into(out, x, x)
    assert device.failure is device.memory.lost
    assert device.table.quarantine.entries == {}


def test_a_device_goes_when_nobody_uses_it(fakes):
    """Who still asks whether it lives, as its allocator does, does not keep it."""
    device = fakes.device()
    liveness, gone = device.liveness, weakref.ref(device)
    del device
    gc.collect()
    assert gone() is None
    liveness.lost(DeviceLostError("later"))
    assert str(liveness.failure) == "later"
