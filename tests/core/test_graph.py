from __future__ import annotations

import threading

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import ops
from propolis.errors import DeviceLostError
from propolis.errors import DispatchError
from propolis.errors import OpError


def on(device, array):
    """A float32 tensor with those elements there."""
    return Tensor.from_numpy(np.asarray(array, np.float32), device)


def test_replay_repeats_the_calls_over_the_same_memory(cpu):
    """New data in the inputs gives new data in the outputs; nothing is allocated."""
    x, out = on(cpu, [1, 2]), cpu.empty((2,), ops.add.key(*[on(cpu, [0]).dtype]))
    with capture(cpu) as graph:
        y = ops.add(x, x)
        ops.mul.into(out, y, x)
    assert (y.numpy().tolist(), out.numpy().tolist()) == ([2, 4], [2, 8])
    assert len(graph) == 2
    address = y.ptr
    x.assign(np.float32([3, 4]))
    assert y.numpy().tolist() == [2, 4]
    graph.replay()
    assert (y.numpy().tolist(), out.numpy().tolist()) == ([6, 8], [18, 32])
    assert y.ptr == address


def test_keywords_are_part_of_the_recording(cpu):
    """A replay passes what the call passed."""
    x = on(cpu, [[1, 2], [1, 0]])
    with capture(cpu) as graph:
        y = ops.argmax(x, dim=0)
    x.assign(np.float32([[0, 2], [1, 3]]))
    graph.replay()
    assert y.numpy().tolist() == [1, 1]


def test_ops_outside_the_block_are_not_kept(cpu):
    """Before and after, ops run as always."""
    x = on(cpu, [1, 2])
    plain = cpu.table.bound
    ops.add(x, x)
    with capture(cpu) as graph:
        pass
    ops.add(x, x)
    assert cpu.table.bound is plain
    assert len(graph) == 0


def test_what_is_bound_while_recording_stays_bound(cpu):
    """An op first seen in a captured step is bound to the plain function after it."""
    x = on(cpu, [1, 2])
    with capture(cpu):
        ops.add(x, x)
        ops.add(x, x)
    assert cpu.table.bound["add"][x.dtype] is cpu.table.bind(ops.add, x.dtype)
    (impl,) = cpu.table._impls["add"]
    assert cpu.table.bound["add"][x.dtype] is impl.fn


def test_captures_do_not_nest(cpu):
    """The second says so, and the first goes on."""
    x = on(cpu, [1, 2])
    with capture(cpu) as graph:
        with pytest.raises(DispatchError, match="on cpu are captured or watched"), capture(cpu):
            pass
        ops.add(x, x)
    assert len(graph) == 1


def test_an_error_in_the_block_ends_the_capture(cpu):
    """The graph is closed, and ops run plainly again."""
    x = on(cpu, [1, 2])
    plain = cpu.table.bound
    cache, row = on(cpu, np.zeros((1, 1, 1, 1))), on(cpu, np.ones((1, 1, 1, 1)))
    with pytest.raises(OpError, match="position"), capture(cpu) as graph:  # noqa: PT012
        ops.add(x, x)
        ops.kv_append(cache, row, Tensor.from_numpy(np.array([[7]], np.int32), cpu))
    assert cpu.table.bound is plain
    assert len(graph) == 0
    with pytest.raises(DispatchError, match="closed"):
        graph.replay()
    with capture(cpu) as again:
        ops.add(x, x)
    assert len(again) == 1


def test_a_failing_call_may_be_survived_inside_the_block(cpu):
    """The recording goes on after an error that the block handles."""
    x = on(cpu, [1, 2])
    cache, row = on(cpu, np.zeros((1, 1, 1, 1))), on(cpu, np.ones((1, 1, 1, 1)))
    with capture(cpu) as graph:
        with pytest.raises(OpError):
            ops.kv_append(cache, row, Tensor.from_numpy(np.array([[7]], np.int32), cpu))
        ops.add(x, x)
    assert len(graph) == 1


def test_only_this_threads_ops_are_kept(cpu):
    """Another thread's work on the device runs, and is no part of the step."""
    x = on(cpu, [1, 2])
    results = []
    with capture(cpu) as graph:
        other = threading.Thread(target=lambda: results.append(ops.add(x, x).numpy().tolist()))
        other.start()
        other.join()
        ops.mul(x, x)
    assert results == [[2, 4]]
    assert len(graph) == 1


def test_a_copy_that_core_inserts_is_recorded_once(fakes):
    """The copy of a strided input belongs to the call that needs it."""

    def dense(out, a, b, /):
        fakes.view(out)[...] = fakes.view(a) + fakes.view(b)

    device = fakes.device(fakes.impl(fn=dense, strided=False), fakes.copy)
    x = on(device, [[1, 2], [3, 4]])
    with capture(device) as graph:
        y = ops.add(x.transpose(0, 1), x)
    assert len(graph) == 1
    x.assign(np.float32([[0, 1], [2, 3]]))
    graph.replay()
    assert y.numpy().tolist() == [[0, 3], [3, 6]]


def test_a_fallback_is_replayed_as_one(fakes):
    """A call on the CPU rung copies again at each replay, and is counted again."""
    device = fakes.device()
    x = on(device, [1, 2])
    with capture(device) as graph:
        y = ops.add(x, x)
    x.assign(np.float32([5, 6]))
    graph.replay()
    assert y.numpy().tolist() == [10, 12]
    assert [t.calls for t in device.table.fallbacks.tallies.values()] == [2]


def test_a_fallback_is_no_op_of_the_cpus_step(fakes, cpu):
    """What runs on the CPU for another device works on copies: replaying it would be in vain."""
    device = fakes.device()
    there = on(device, [1, 2])
    with capture(cpu) as graph:
        assert ops.add(there, there).numpy().tolist() == [2, 4]
        here = on(cpu, [1, 2])
        ops.add(here, here)
    assert len(graph) == 1


def test_devices_are_captured_apart(fakes, cpu):
    """Ops of another device are not kept."""
    device = fakes.device(fakes.impl())
    here, there = on(cpu, [1, 2]), on(device, [1, 2])
    with capture(device) as graph:
        ops.add(here, here)
        ops.add(there, there)
    assert len(graph) == 1


class Recorder:
    """A device's own graphs, in Python: keeps what it was given and counts its launches."""

    def __init__(self, device, *, refuses=False):
        self.recorded, self.launches, self.refuses = [], 0, refuses
        device.record = self.record

    def record(self, calls):
        """As a device does."""
        self.recorded.append(len(calls))
        if self.refuses:
            return None

        def launch():
            self.launches += 1
            for call in calls:
                call()

        return launch


def test_the_device_joins_calls_that_only_queue_work(fakes, cpu):
    """A stretch of capture-safe calls is one launch; a fallback to the CPU stays a call between."""
    device = fakes.device(fakes.impl(capture_safe=True))
    own = Recorder(device)
    x = on(device, [1, 2])
    with capture(device) as graph:
        y = ops.add(ops.add(x, x), x)
        z = ops.mul(y, y)  # on the CPU
        w = ops.add(ops.add(z, x), ops.add(x, x))
    assert (own.recorded, own.launches) == ([2, 3], 0)
    assert w.numpy().tolist() == [12, 42]
    x.assign(np.float32([2, 3]))
    graph.replay()
    assert own.launches == 2
    assert w.numpy().tolist() == [42, 90]
    assert not graph.is_one_launch()


def test_calls_that_may_wait_are_not_joined(fakes):
    """An implementation that does not promise to be capture-safe is called each time."""
    device = fakes.device(fakes.impl())
    own = Recorder(device)
    with capture(device) as graph:
        ops.add(ops.add(on(device, [1]), on(device, [2])), on(device, [3]))
    graph.replay()
    assert (own.recorded, own.launches) == ([], 0)
    assert not graph.is_one_launch()


def test_a_device_may_decline_to_join(fakes):
    """Its calls are then repeated one by one."""
    device = fakes.device(fakes.impl(capture_safe=True))
    Recorder(device, refuses=True)
    x = on(device, [1])
    with capture(device) as graph:
        y = ops.add(ops.add(x, x), x)
    x.assign(np.float32([5]))
    graph.replay()
    assert y.numpy().tolist() == [15]
    assert not graph.is_one_launch()


def test_joined_calls_are_taken_apart_when_another_serves(fakes):
    """After a quarantine the joined launch, which knows nothing of it, is not used again."""
    first = fakes.impl(capture_safe=True, priority=9)
    device = fakes.device(first, fakes.impl(capture_safe=True, plugin="second"))
    own = Recorder(device)
    x = on(device, [1])
    with capture(device) as graph:
        y = ops.add(ops.add(x, x), x)
    assert graph.is_one_launch()
    mine = device.table._impls["add"][0]
    device.table.condemn(mine, x.dtype, "raised a test's error")
    x.assign(np.float32([5]))
    assert not graph.is_one_launch()
    graph.replay()
    assert own.launches == 0
    assert y.numpy().tolist() == [15]


def test_a_lost_device_does_not_launch_what_it_joined(fakes):
    """The replay says that the device is lost, without asking it."""
    device = fakes.device(fakes.impl(capture_safe=True))
    own = Recorder(device)
    x = on(device, [1])
    with capture(device) as graph:
        ops.add(ops.add(x, x), x)
    device.lost(DeviceLostError("fake: gone"))
    with pytest.raises(DeviceLostError, match="fake: gone"):
        graph.replay()
    assert own.launches == 0
