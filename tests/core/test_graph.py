from __future__ import annotations

import threading

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import ops
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
        with pytest.raises(DispatchError, match="cpu is being captured"), capture(cpu):
            pass
        ops.add(x, x)
    assert len(graph) == 1


def test_an_error_in_the_block_ends_the_capture(cpu):
    """What was recorded stays, the failing call is not, and ops run plainly again."""
    x = on(cpu, [1, 2])
    plain = cpu.table.bound
    cache, row = on(cpu, np.zeros((1, 1, 1, 1))), on(cpu, np.ones((1, 1, 1, 1)))
    with pytest.raises(OpError, match="position"), capture(cpu) as graph:  # noqa: PT012
        ops.add(x, x)
        ops.kv_append(cache, row, Tensor.from_numpy(np.array([[7]], np.int32), cpu))
    assert cpu.table.bound is plain
    assert len(graph) == 1
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
