from __future__ import annotations

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import Tensor
from propolis import ops
from propolis.config import Config
from propolis.dispatch import FallbackLog
from propolis.dispatch.fallback import MAX_REASONS
from propolis.dispatch.fallback import OTHER_REASONS
from propolis.errors import FallbackError
from propolis.runtime import Runtime


@pytest.fixture
def limited(fakes):
    """A device without ops, with a budget."""

    def make(**limits):
        device = fakes.device()
        device.table.fallbacks = FallbackLog("allow", **limits)
        return device, Tensor.from_numpy(np.zeros(4, np.float32), device)

    return make


def test_calls(limited):
    """Calls of all ops count together; the one too many is refused before it copies."""
    device, x = limited(max_calls=2)
    ops.add(x, x)
    ops.mul(x, x)
    device.memory.copied_out.clear()
    message = (
        r"^add: would run on the cpu instead of fake:0 \(no plugin implements add for fake:0\) "
        r"over the fallback budget, calls: 3 of 2 \(fallback_max_calls\): install .* the limit$"
    )
    with pytest.raises(FallbackError, match=message):
        ops.add(x, x)
    assert device.memory.copied_out == []
    assert device.table.fallbacks.total.calls == 2


def test_bytes(limited):
    """Copies there and back count; exactly the budget may be used."""
    device, x = limited(max_bytes=96)
    ops.add(x, x)
    ops.mul(x, x)
    assert device.table.fallbacks.total.nbytes == 96
    with pytest.raises(FallbackError, match=r"bytes copied: 144 of 96 \(fallback_max_bytes\)"):
        ops.add(x, x)


def test_both_limits_are_named(limited):
    """A budget of nothing refuses the first call, and says all that it exceeds."""
    _, x = limited(max_calls=0, max_bytes=0)
    with pytest.raises(FallbackError, match=r"calls: 1 of 0 .* and bytes copied: 48 of 0"):
        ops.add(x, x)


def test_what_was_counted_is_what_was_copied(limited):
    """The forecast equals the copies, for a mutated first argument too."""
    device, x = limited()
    ops.add(x, x)
    cache = Tensor.from_numpy(np.zeros((1, 4, 1, 2), np.float32), device)
    row = Tensor.from_numpy(np.ones((1, 1, 1, 2), np.float32), device)
    at = Tensor.from_numpy(np.array([[1]], np.int32), device)
    device.memory.copied_in.clear()
    before = device.table.fallbacks.total.nbytes
    device.memory.copied_out.clear()
    ops.kv_append(cache, row, at)
    copied = sum(device.memory.copied_in) + sum(device.memory.copied_out)
    assert device.table.fallbacks.total.nbytes - before == copied


def test_settings_reach_the_runtime(monkeypatch):
    """Both limits are settings."""
    monkeypatch.setenv("PROPOLIS_FALLBACK_MAX_CALLS", "3")
    log = Runtime.start(Config.load(fallback_max_bytes=10)).fallbacks
    assert (log.max_calls, log.max_bytes) == (3, 10)


def test_reasons_without_end_share_one_tally():
    """Reasons that hold sizes fill neither the memory nor the log; calls stay counted."""
    log = FallbackLog("warn")
    with capture_logs() as lines:
        for length in range(100):
            log.admit("add", "fake:0", f"length {length}", 1)
        log.admit("mul", "fake:0", "another op has reasons of its own", 1)
        log.admit("add", "fake:0", "length 0", 1)
    assert len(lines) == MAX_REASONS + 2
    assert lines[-2]["reason"] == OTHER_REASONS
    assert log.tallies["add", OTHER_REASONS].calls == 100 - MAX_REASONS
    assert log.tallies["add", "length 0"].calls == 2
    assert (log.total.calls, log.total.nbytes) == (102, 102)
