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
from propolis.dispatch.metrics import Cost
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
    costs = device.table.placement.metrics.costs
    costs["mul", "cpu_ref", "cpu"].seconds, costs["add", "fake", "fake:0"].seconds = 2.5, 0.0
    *_, head, mul, add = device.table.placement.lines()
    assert head == "metrics: op   plugin   device  calls  fallbacks   bytes  seconds   share"
    assert mul.startswith("metrics: mul  cpu_ref  cpu         1          1  0.0 MB    2.500  ")
    assert re.fullmatch(
        r"metrics: add  fake     fake:0      1          0  0\.0 MB    \d\.\d{3} +\d+\.\d%", add
    )
    assert len(head) == len(mul) == len(add)


def test_prepared_weights_count_as_what_is_read(cpu):
    """Of a weight in blocks, the bytes of what the implementation made of it."""
    metrics = Metrics()
    every = [i for impls in cpu.table._impls.values() for i in impls]
    cpu.table = DispatchTable(cpu, every, cpu, metrics=metrics)
    x = Tensor.from_numpy(np.ones((1, 64), np.float32), cpu)
    blocks = ops.quantize(Tensor.from_numpy(np.ones((8, 64), np.float32), cpu), dtypes.q8_0)
    weight = cpu.table.prepare(ops.qmatmul, ops.qmatmul.key(x.dtype, dtypes.q8_0), blocks)
    ops.qmatmul(x, weight)
    given = 64 * 4 + 8 * 4
    assert metrics.costs["qmatmul", "cpu_ref", "cpu"].nbytes == given + 8 * 64 * 4
    ops.qmatmul(x, blocks)
    assert metrics.costs["qmatmul", "cpu_ref", "cpu"].nbytes == 2 * given + 8 * 64 * (4 + 34 / 32)


def test_tables_that_are_looked_into(cpu):
    """An embedding reads the rows that were asked for, not the table."""
    metrics = Metrics()
    every = [i for impls in cpu.table._impls.values() for i in impls]
    cpu.table = DispatchTable(cpu, every, cpu, metrics=metrics)
    table = Tensor.from_numpy(np.zeros((1000, 16), np.float32), cpu)
    ops.embedding(Tensor.from_numpy(np.array([[1, 2]]), cpu), table)
    assert metrics.costs["embedding", "cpu_ref", "cpu"].nbytes == 2 * 8 + 2 * (2 * 16 * 4)


def test_every_table_is_a_parameter():
    """
    The places that are looked into are tensors of their ops, destinations counted.

    Tables of angles are among them in each op that has some.
    """
    from propolis.dispatch.metrics import LOOKED_INTO

    for op, spec in ops.catalogue().items():
        names = [*("out",) * spec.outputs, *spec.signature.parameters]
        tables = {names[place] for place in LOOKED_INTO.get(op, ())}
        assert tables <= {"table", "x", "target", "cache", "cos", "sin"}
        assert tables & {"cos", "sin"} == set(names) & {"cos", "sin"} - {op}


def test_fallbacks_are_counted_once():
    """Where two plugins serve an op on the CPU, its fallbacks are not both's."""
    metrics = Metrics()
    metrics.costs = {
        ("add", plugin, "cpu"): Cost(calls, 0, seconds)
        for plugin, calls, seconds in (("one", 3, 2.0), ("two", 5, 1.0))
    }
    rows = metrics.rows({"add": 4})
    assert [(r["plugin"], r["fallbacks"]) for r in rows] == [("one", 3), ("two", 1)]


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
    assert cpu.table.placement.lines()[-1].split()[:5] == ["metrics:", "add", "cpu_ref", "cpu", "1"]
