from __future__ import annotations

import re

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.config import Config
from propolis.dispatch import DispatchTable
from propolis.dispatch import Metrics
from propolis.runtime import Runtime


@pytest.fixture
def measured(fakes, cpu):
    """A device that adds, beside a CPU; both are measured."""
    metrics = Metrics()
    every = [i for impls in cpu.table._impls.values() for i in impls]
    cpu.table = DispatchTable(cpu, every, cpu, metrics=metrics)
    device = fakes.device()
    device.table = DispatchTable(device, [fakes.impl()], cpu, metrics=metrics)
    return device, Tensor.from_numpy(np.ones(4, np.float32), device)


def test_calls_bytes_and_fallbacks(measured):
    """Each plugin's own, for machines; the host copies of a fallback are the CPU's."""
    device, x = measured
    for _ in range(3):
        ops.add(x, x)
    ops.mul(x, x)
    rows = {r["op"]: r for r in device.table.placement.as_dict()["metrics"]}
    assert rows["add"].pop("seconds") > 0
    assert rows["mul"].pop("seconds") > 0
    assert rows == {
        "add": {
            "op": "add",
            "plugin": "fake",
            "device": "fake:0",
            "calls": 3,
            "nbytes": 3 * 48,
            "fallbacks": 0,
        },
        "mul": {
            "op": "mul",
            "plugin": "cpu_ref",
            "device": "cpu",
            "calls": 1,
            "nbytes": 48,
            "fallbacks": 1,
        },
    }


def test_lines_for_people(measured):
    """Below the placement, the dearest first."""
    device, x = measured
    ops.add(x, x)
    ops.mul(x, x)
    device.table.placement.metrics.costs["mul", "cpu_ref", "cpu"].seconds = 2.5
    lines = device.table.placement.lines()
    assert lines[-2] == (
        "metrics: mul by cpu_ref on cpu: 1 calls, 1 of them fallbacks, 0.0 MB, 2.500 s"
    )
    assert re.fullmatch(r"metrics: add by fake on fake:0: 1 calls, 0\.0 MB, \d\.\d{3} s", lines[-1])


def test_replays_count(measured):
    """A captured step is measured each time it runs."""
    device, x = measured
    with capture(device) as graph:
        ops.add(x, x)
    graph.replay()
    assert device.table.placement.metrics.costs["add", "fake", "fake:0"].calls == 2


def test_calls_that_fail_do_not_count(fakes):
    """They are the log's and the quarantine's."""

    def broken(out, a, b, /):
        msg = "kernel failed"
        raise RuntimeError(msg)

    device, metrics = fakes.device(), Metrics()
    device.table = DispatchTable(device, [fakes.impl(fn=broken)], device, metrics=metrics)
    x = Tensor.from_numpy(np.ones(4, np.float32), device)
    with pytest.raises(RuntimeError, match="kernel failed"):
        ops.add(x, x)
    assert metrics.costs == {}


def test_off_unless_asked(monkeypatch):
    """Without the setting the plugin's own function is bound, and no summary mentions it."""
    runtime = Runtime.start(Config.load())
    table = runtime.cpu.table
    assert runtime.metrics is None
    assert table.bind(ops.add, dtypes.f32).__module__ == "propolis_cpu_ref.ops_binary"
    assert "metrics" not in table.placement.as_dict()
    monkeypatch.setenv("PROPOLIS_METRICS", "1")
    cpu = Runtime.start(Config.load()).cpu
    x = Tensor.from_numpy(np.ones(2, np.float32), cpu)
    ops.add(x, x)
    assert "metrics: add by cpu_ref on cpu: 1 calls" in cpu.table.placement.lines()[-1]
