"""Handlers that look at calls: by thread, nested in decompositions, and of failures alone."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch import Handler
from propolis.dispatch import table as table_module
from propolis.errors import DispatchError


def on(device, *values):
    """A float32 tensor with those elements there."""
    return Tensor.from_numpy(np.float32(values), device)


class Noting(Handler):
    """Notes each call, before and after it runs."""

    def __init__(self, name="", log=None) -> None:
        self.name = name
        self.log = [] if log is None else log
        self.calls = []

    def run(self, call, proceed):
        """Note it twice."""
        self.calls.append(call)
        self.log.append(f"{self.name}>{call.spec.name}")
        proceed()
        self.log.append(f"{self.name}<{call.spec.name}")


def test_calls_are_handed_over(fakes):
    """Each with its op, its key and its arguments apart; the table is as before afterwards."""
    device, noting = fakes.device(fakes.impl()), Noting()
    x = on(device, 1, 2)
    plain = device.table.bind(ops.add, dtypes.f32)
    with device.table.intercept(noting):
        y = ops.add(x, x)
        assert y.numpy().tolist() == [2, 4]
        assert ops.softmax(x, dim=0).numpy().sum() == pytest.approx(1)  # on the CPU
    ops.add(x, x)
    add, softmax = noting.calls
    assert (add.spec, add.key, add.attributes) == (ops.add, dtypes.f32, {})
    assert add.outputs[0] is y
    assert [value is x for value in add.inputs] == [True, True]
    assert (softmax.spec, softmax.attributes) == (ops.softmax, {"dim": 0})
    assert device.table.bound is device.table.plain
    assert device.table.plain["add"][dtypes.f32] is plain


def test_an_op_that_only_mutates_has_no_outputs(cpu):
    """Its destination is its first input, and what is written."""
    noting, x, y = Noting(), on(cpu, 1, 2), on(cpu, 3, 4)
    with cpu.table.intercept(noting):
        ops.assign(x, y)
    (call,) = noting.calls
    assert call.outputs == ()
    assert [value is other for value, other in zip(call.inputs, (x, y), strict=True)] == [
        True,
        True,
    ]
    assert call.written[0] is x
    assert not call.can_repeat


def test_the_last_handler_is_outermost(fakes):
    """Each runs the call as it would have been run without it; one that goes leaves the others."""
    device, log = fakes.device(fakes.impl()), []
    x = on(device, 1)
    first = device.table.intercept(Noting("a", log))
    with device.table.intercept(Noting("b", log)):
        ops.add(x, x)
    ops.add(x, x)
    first.close()
    ops.add(x, x)
    assert log == ["b>add", "a>add", "a<add", "b<add", "a>add", "a<add"]
    assert device.table.bound is device.table.plain


def test_other_threads_are_not_watched(fakes):
    """Their calls run as they are, unless the handler is for every thread."""
    device, mine, all_ = fakes.device(fakes.impl()), Noting(), Noting()
    x, results = on(device, 1), []
    with device.table.watch(mine, "test"), device.table.intercept(all_):
        thread = threading.Thread(target=lambda: results.append(ops.add(x, x).numpy().item()))
        thread.start()
        thread.join()
    assert ([], 1, [2]) == (mine.calls, len(all_.calls), results)


def test_who_watches_does_so_alone(fakes):
    """What looks at this thread's calls does so alone; the second says so."""
    device = fakes.device(fakes.impl())
    watch = device.table.watch
    with watch(Noting(), "drift"):
        with pytest.raises(DispatchError, match="captured or watched"), capture(device):
            pass
        with pytest.raises(DispatchError, match="which does not nest"):
            watch(Noting(), "drift")
    with capture(device), pytest.raises(DispatchError, match="which does not nest"):
        watch(Noting(), "drift")
    assert device.table.bound is device.table.plain


def test_a_captured_call_is_seen_by_those_who_look_at_every_thread(fakes):
    """At each replay; who looks at one thread would see none, and no replay passes it by."""
    device, everybodys, mine = fakes.device(fakes.impl()), Noting(), Noting()
    x = on(device, 1)
    with device.table.intercept(everybodys):
        with capture(device) as graph:
            ops.add(x, x)
        graph.replay()
        told = "replay: this thread's calls on fake:0 are captured or watched already"
        with device.table.watch(mine, "test"), pytest.raises(DispatchError, match=told):
            graph.replay()
        with pytest.raises(DispatchError, match=told), capture(device):
            graph.replay()
        graph.replay()
    assert (len(everybodys.calls), mine.calls) == (3, [])


def test_failures_alone_cost_nothing(fakes):
    """Who overrides `failed` alone is told of them, while the entries stay as they are."""
    told = []

    class Listening(Handler):
        def failed(self, call, impl, error, *, intact):
            told.append((call.spec.name, impl.provenance.plugin, str(error), intact))

    def broken(out, a, b, /):
        msg = "odd"
        raise RuntimeError(msg)

    device = fakes.device(fakes.impl(fn=broken, plugin="bad"))
    device.table.intercept(Listening())
    assert device.table.bound is device.table.plain
    x = on(device, 1)
    assert ops.add(x, x).numpy().item() == 2  # the CPU did it
    assert told == [("add", "bad", "odd", True)]


def test_only_the_own_threads_failures_are_told(fakes):
    """Who looks at one thread's calls learns of that thread's failures alone."""
    told = []

    class Listening(Handler):
        def failed(self, call, impl, error, *, intact):
            told.append(threading.current_thread().name)

    def broken(out, a, b, /):
        msg = "odd"
        raise RuntimeError(msg)

    device = fakes.device(fakes.impl(fn=broken, plugin="bad"))
    x = on(device, 1)
    with device.table.watch(Listening(), "test"):
        thread = threading.Thread(target=ops.add, args=(x, x))
        thread.start()
        thread.join()
    assert told == []


def test_a_look_that_ends_while_another_thread_binds(fakes, monkeypatch):
    """What that thread binds goes where it looked, not into the entries that stay."""
    device = fakes.device(fakes.impl())
    table, x = device.table, on(device, 1)
    context = table.intercept(Noting())

    def ends_meanwhile(*args):
        context.close()
        return partial(*args)

    monkeypatch.setattr(table_module, "partial", ends_meanwhile)
    table.bind(ops.add, dtypes.f32)
    monkeypatch.undo()
    assert table.bound is table.plain
    assert ops.add(x, x).numpy().item() == 2
