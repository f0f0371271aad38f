"""A replay allocates nothing, on whatever rung of the ladder its calls are."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch.capture import Scratch
from propolis.errors import DispatchError
from propolis.errors import OutOfMemoryError


def on(device, values):
    """A float32 tensor with those elements there."""
    return Tensor.from_numpy(np.asarray(values, np.float32), device)


def unary(fakes, name, function, **fields):
    """An implementation of an op of one tensor."""

    def run(out, x, /):
        fakes.view(out)[...] = function(fakes.view(x))

    return fakes.impl(name, run, **fields)


def sigmoid(x):
    """By the formula."""
    return 1 / (1 + np.exp(-x))


@pytest.fixture
def parts(fakes):
    """What silu_mul and quick_gelu decompose into, but silu."""

    def affine(out, x, /, mul, add):
        fakes.view(out)[...] = fakes.view(x) * mul + add

    return [
        unary(fakes, "sigmoid", sigmoid),
        fakes.impl("mul", fakes.kernel(np.multiply)),
        fakes.impl("affine", affine),
    ]


@pytest.fixture
def frugal(monkeypatch):
    """Replay a graph that must not allocate on its device, nor build host buffers."""

    def replay(device, graph):
        def refuse(nbytes):
            msg = f"allocates {nbytes} bytes"
            raise AssertionError(msg)

        buffers = [id(b) for b in graph.scratch.buffers]
        with monkeypatch.context() as patch:
            patch.setattr(device.memory, "allocate", refuse)
            graph.replay()
        assert [id(b) for b in graph.scratch.buffers] == buffers

    return replay


def test_a_decomposed_call(fakes, parts, frugal):
    """Its parts are replayed over results that are kept, decompositions in parts included."""
    device = fakes.device(*parts, policy="error")
    gate, up = on(device, [1, 2]), on(device, [3, 4])
    with capture(device) as graph:
        y = ops.silu_mul(gate, up)
    assert len(graph) == 1
    for values in ([5, 6], [-1, 7]):
        gate.assign(np.float32(values))
        frugal(device, graph)
        x = np.float32(values)
        np.testing.assert_allclose(y.numpy(), x * sigmoid(x) * [3, 4], rtol=1e-6)


def test_calls_take_turns_in_the_same_memory(fakes, parts, frugal):
    """Temporaries of many decomposed calls take the room of the neediest one."""
    device = fakes.device(*parts, policy="error")
    x = on(device, np.linspace(-2, 2, 64))
    before = len(device.memory.live)
    with capture(device) as graph:
        results = [ops.quick_gelu(x.narrow(0, 0, n)) for n in (16, 64, 32, 64, 8)]
    gc.collect()
    # 5 results; 2 temporaries of a call, those of 16 outgrown by those of 64.
    assert len(device.memory.live) - before == 5 + 2 + 2
    x.assign(np.linspace(0, 3, 64).astype(np.float32))
    frugal(device, graph)
    for y in results:
        a = x.numpy()[: y.numel]
        np.testing.assert_allclose(y.numpy(), a * sigmoid(1.702 * a), rtol=1e-6)


def test_a_call_that_falls_to_its_decomposition_later(fakes, parts, frugal):
    """One whose implementation fails in a replay keeps its parts from then on."""
    healthy = [True]

    def moody(x):
        if not healthy[0]:
            msg = "moody"
            raise RuntimeError(msg)
        return x * sigmoid(x)

    device = fakes.device(unary(fakes, "silu", moody), *parts, policy="error")
    x, up = on(device, [1, 2]), on(device, [1, 1])
    with capture(device) as graph:
        y = ops.silu(x)
        z = ops.silu_mul(x, up)  # decomposed at once, its part silu later
    healthy[0] = False
    graph.replay()
    x.assign(np.float32([3, 4]))
    frugal(device, graph)
    for result in (y, z):
        np.testing.assert_allclose(result.numpy(), x.numpy() * sigmoid(x.numpy()), rtol=1e-6)


def test_copies_that_core_inserts(fakes, frugal):
    """Strided inputs are packed into memory that is kept."""

    def dense(out, a, b, /):
        fakes.view(out)[...] = fakes.view(a) * 10 + fakes.view(b)

    device = fakes.device(fakes.impl(fn=dense, strided=False), fakes.copy, policy="error")
    x = on(device, [[1, 2], [3, 4]])
    with capture(device) as graph:
        y = ops.add(x.transpose(0, 1), x.transpose(0, 1))
    x.assign(np.float32([[0, 1], [2, 3]]))
    frugal(device, graph)
    assert y.numpy().tolist() == [[0, 22], [11, 33]]


def test_a_fallback_to_the_cpu(fakes, frugal):
    """Its mirrors are kept, and calls take turns in them."""
    device = fakes.device()
    x = on(device, [[1, 2], [3, 4]])
    with capture(device) as graph:
        y = ops.add(x, x.transpose(0, 1))
        z = ops.mul(y, x)
    held = sum(buffer.nbytes for buffer in graph.scratch.buffers)
    assert held == 3 * x.nbytes
    x.assign(np.float32([[0, 1], [2, 3]]))
    frugal(device, graph)
    assert z.numpy().tolist() == [[0, 3], [6, 18]]
    assert device.table.fallbacks.total.calls == 4


def test_an_op_that_mutates_falls_too(fakes, frugal):
    """What is there of the target is read again at each replay."""
    device = fakes.device()
    cache, rows = on(device, np.zeros((1, 3, 1, 1))), on(device, np.ones((1, 1, 1, 1)))
    at = Tensor.from_numpy(np.array([[0]], np.int32), device)
    with capture(device) as graph:
        ops.kv_append(cache, rows, at)
    at.assign(np.array([[2]], np.int32))
    frugal(device, graph)
    assert cache.numpy().reshape(-1).tolist() == [1, 0, 1]


def test_constants_of_a_decomposition_stay(fakes, frugal, monkeypatch):
    """What it makes of host data is no temporary: nobody else may lie there."""
    device = fakes.device(fakes.impl("mul", fakes.kernel(np.multiply)), fakes.impl())

    def sqr(out, x, /):
        two = on(x.device, [2, 2])
        ops.mul.into(out, ops.add(x, x), two)

    monkeypatch.setattr(ops.sqr, "decomposition", ops.sqr.decomposition._replace(fn=sqr))
    x = on(device, [1, 2])
    with capture(device) as graph:
        results = [ops.sqr(x), ops.sqr(x)]
    x.assign(np.float32([5, 6]))
    frugal(device, graph)
    assert [y.numpy().tolist() for y in results] == [[20, 24]] * 2


def test_a_decomposition_that_fails_half_way(fakes, parts):
    """Nothing of it is kept; the next replay records it anew."""
    fail = [False]
    inner = parts[0].fn

    def fragile(out, x, /):
        if fail[0]:
            raise MemoryError
        inner(out, x)

    device = fakes.device(fakes.impl("sigmoid", fragile), *parts[1:], policy="error")
    x = on(device, [1, 2])
    with capture(device) as graph:
        fail[0] = True
        with pytest.raises(OutOfMemoryError):
            ops.silu(x)
        fail[0] = False
        y = ops.silu(x)
    assert len(graph) == 1
    x.assign(np.float32([3, 4]))
    graph.replay()
    np.testing.assert_allclose(y.numpy(), x.numpy() * sigmoid(x.numpy()), rtol=1e-6)


def test_two_threads_may_capture_one_device(fakes):
    """Each keeps its own calls, also those parts that it replays for the first time."""
    import threading

    device = fakes.device(fakes.impl())
    x = on(device, [1, 2])
    inside, done = threading.Event(), threading.Event()
    lengths = []

    def other():
        with capture(device) as graph:
            inside.set()
            done.wait(10)
            ops.add(x, x)
        lengths.append(len(graph))

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    with capture(device) as graph:
        ops.add(x, x)
        ops.add(x, x)
    done.set()
    thread.join()
    assert (len(graph), lengths) == (2, [1])
    assert device.table.bound is device.table.plain


def test_scratch_memory_reuses_the_smallest_that_fits(fakes):
    """Blocks in use by the same call are not taken twice."""
    device, scratch = fakes.device(), Scratch()
    large, small = (device.empty((n,), dtypes.f32) for n in (64, 8))
    scratch.take_over([large, small], [large, small])
    assert len(scratch.blocks) == 2
    again = [device.empty((n,), dtypes.f32) for n in (4, 16)]
    scratch.take_over(again, again)
    assert [t.storage for t in again] == [small.storage, large.storage]
    more = device.empty((4,), dtypes.f32)
    scratch.take_over([more], [more, *again])
    assert len(scratch.blocks) == 3


@pytest.fixture
def arithmetic(fakes):
    """A device that adds and multiplies, and assigns."""

    def assign(target, source, /):
        fakes.view(target)[...] = fakes.view(source)

    impls = [
        fakes.impl(),
        fakes.impl("mul", fakes.kernel(np.multiply)),
        fakes.impl("assign", assign),
    ]
    return fakes.device(*impls, policy="error")


def chain(x, steps):
    """Doubled so many times, a tensor for each."""
    for _ in range(steps):
        x = ops.add(x, x)
    return x


def test_what_a_step_lets_go_takes_turns(arithmetic, frugal):
    """Of a chain of ten results two are needed at once, and the last one is somebody's."""
    x = on(arithmetic, np.ones(64))
    before = len(arithmetic.memory.live)
    with capture(arithmetic) as graph:
        y = chain(x, 10)
    gc.collect()
    assert len(arithmetic.memory.live) - before == 3
    for value in (2, 3):
        x.assign(np.full(64, value, np.float32))
        frugal(arithmetic, graph)
        assert y.numpy().tolist() == [1024.0 * value] * 64


def test_while_a_step_is_captured_its_memory_is_used_again(arithmetic):
    """The graph holds no more than the step itself: what it lets go is free at once."""
    x = on(arithmetic, np.ones(64))
    before = len(arithmetic.memory.live)
    most = 0
    with capture(arithmetic):
        for _ in range(10):
            x = ops.add(x, x)
            most = max(most, len(arithmetic.memory.live) - before)
    assert most <= 2


def test_results_that_overlap_get_memory_of_their_own(arithmetic, frugal):
    """What is read late keeps its memory until then, whatever came and went between."""
    x = on(arithmetic, np.ones(8))
    with capture(arithmetic) as graph:
        early = ops.add(x, x)
        late = chain(x, 5)
        y = ops.mul(early, late)
        del early, late
    x.assign(np.full(8, 2, np.float32))
    frugal(arithmetic, graph)
    assert y.numpy().tolist() == [4.0 * 64] * 8


def test_views_of_what_a_step_lets_go(arithmetic, frugal):
    """Parts joined in one tensor, and read by views of it, are one temporary."""
    x = on(arithmetic, np.arange(4))
    with capture(arithmetic) as graph:
        both = ops.cat([ops.add(x, x), ops.mul(x, x)], 0)
        y = ops.add(both.narrow(0, 0, 4), both.narrow(0, 4, 4))
        del both
        z = chain(y, 3)
    x.assign(np.float32([4, 3, 2, 1]))
    frugal(arithmetic, graph)
    assert y.numpy().tolist() == [24.0, 15.0, 8.0, 3.0]
    assert z.numpy().tolist() == [192.0, 120.0, 64.0, 24.0]


def test_what_the_host_filled_in_a_step_stays(arithmetic, frugal):
    """A constant that the step uploads is there at each replay, though nobody else holds it."""
    x = on(arithmetic, [1, 2])
    with capture(arithmetic) as graph:
        y = ops.add(x, on(arithmetic, [10, 20]))
        half = arithmetic.empty((2,), dtypes.f32)
        ops.assign(half.narrow(0, 0, 1), x.narrow(0, 0, 1))
        half.narrow(0, 1, 1).assign(np.float32([7]))
        z = ops.add(half, chain(y, 4))
        del half
    x.assign(np.float32([3, 4]))
    frugal(arithmetic, graph)
    assert y.numpy().tolist() == [13.0, 24.0]
    assert z.numpy().tolist() == [13.0 * 16 + 3, 24.0 * 16 + 7]


def test_other_threads_make_tensors_of_their_own(arithmetic):
    """What another thread allocates during a capture is no temporary of it."""
    import threading

    x, made = on(arithmetic, np.ones(8)), []
    with capture(arithmetic) as graph:
        thread = threading.Thread(target=lambda: made.append(ops.add(x, x)))
        thread.start()
        thread.join()
        y = ops.add(chain(x, 3), made[0])
    x.assign(np.zeros(8, np.float32))
    graph.replay()
    assert y.numpy().tolist() == [2.0] * 8
    assert made[0].numpy().tolist() == [2.0] * 8


@pytest.fixture
def uncollected():
    """Without the garbage collector: memory comes back at once, or it does not."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_a_graph_that_is_closed_gives_its_memory_back(fakes, parts):
    """At once, though calls and what runs them hold each other; and it says so when replayed."""
    device = fakes.device(*parts, fakes.impl(), policy="allow")
    x = on(device, np.ones(8))
    before = len(device.memory.live)
    with capture(device) as graph:
        y = ops.exp(ops.silu_mul(ops.add(x, x), x))  # exp falls to the CPU
    graph.close()
    del y
    assert len(device.memory.live) == before
    with pytest.raises(DispatchError, match="closed"):
        graph.replay()


def test_what_others_fill_stays(arithmetic, frugal):
    """Memory that another device, or a plugin's own launch, filled is read first, and held."""
    x = on(arithmetic, [1, 2])
    with capture(arithmetic) as graph:
        foreign = arithmetic.empty((2,), dtypes.f32)
        raw = np.float32([10, 20]).view(np.uint8)
        arithmetic.memory.copy_in(foreign.storage, 0, raw)
        y = ops.add(x, foreign)
        del foreign
        z = chain(y, 4)
    for values in ([3, 4], [5, 6]):
        x.assign(np.float32(values))
        frugal(arithmetic, graph)
        assert z.numpy().tolist() == [16.0 * (values[0] + 10), 16.0 * (values[1] + 20)]


def test_what_falls_to_the_cpu_takes_turns_too(fakes, frugal):
    """A result that the CPU computes is a call's as any other."""
    device = fakes.device()
    x = on(device, np.ones(64))
    before = len(device.memory.live)
    with capture(device) as graph:
        y = chain(x, 10)
    gc.collect()
    assert len(device.memory.live) - before == 3
    x.assign(np.full(64, 3, np.float32))
    frugal(device, graph)
    assert y.numpy().tolist() == [3 * 1024.0] * 64


def test_a_weight_that_comes_back_within_a_call_stays(fakes):
    """Its elements are restored where a step needs them; they are the user's, whoever made them."""
    from propolis import Prepared
    from propolis.dispatch import DispatchTable

    def prepare(w):
        kept = w.numpy().copy()
        return Prepared(
            kept, restore=lambda: ops.add(on(w.device, kept - 1), on(w.device, kept * 0 + 1))
        )

    def linear(out, x, w, /, bias=None):
        fakes.view(out)[...] = fakes.view(x) @ fakes.view(w).T

    lead = fakes.impl(
        "linear", linear, prepare=prepare, supports=lambda *_a, **_k: "never", priority=200
    )
    device = fakes.device(fakes.impl(), fakes.impl("linear", linear), lead)
    w = on(device, [[1, 2], [3, 4]])
    w = DispatchTable.of(device).prepare(ops.linear, ops.linear.key(dtypes.f32), w)
    x = on(device, [[1, 1]])
    with capture(device) as graph:
        y = ops.linear(x, w)
        z = chain(y, 5)
    for values in ([1, 1], [2, 5]):
        x.assign(np.float32([values]))
        graph.replay()
        expected = np.float32([values]) @ np.float32([[1, 3], [2, 4]])
        assert z.numpy().tolist() == (32 * expected).tolist()
        assert w.numpy().tolist() == [[1, 2], [3, 4]]


def test_what_a_decomposition_keeps_stays(fakes, monkeypatch):
    """A table that it makes by ops once, and reads at each call."""
    kept = []

    def sqr(out, x, /):
        if not kept:
            kept.append(ops.add(on(x.device, [1, 1]), on(x.device, [1, 1])))
        ops.mul.into(out, ops.add(x, x), kept[0])

    device = fakes.device(fakes.impl("mul", fakes.kernel(np.multiply)), fakes.impl())
    monkeypatch.setattr(ops.sqr, "decomposition", ops.sqr.decomposition._replace(fn=sqr))
    x = on(device, [1, 2])
    with capture(device) as graph:
        results = [ops.sqr(x), ops.sqr(ops.sqr(x))]
    for values in ([1, 2], [3, 5]):
        x.assign(np.float32(values))
        graph.replay()
        assert results[0].numpy().tolist() == [4.0 * v for v in values]
        assert results[1].numpy().tolist() == [16.0 * v for v in values]
        assert kept[0].numpy().tolist() == [2, 2]


@pytest.mark.usefixtures("uncollected")
def test_a_graph_is_replayed_once_its_step_has_ended(arithmetic):
    """Not within the block, nor where that raised; then nothing of it is left."""
    x = on(arithmetic, np.ones(8))
    before = len(arithmetic.memory.live)
    with capture(arithmetic) as graph:
        chain(x, 3)
        with pytest.raises(DispatchError, match="is being captured"):
            graph.replay()
    graph.replay()
    graph.close()
    with pytest.raises(ZeroDivisionError), capture(arithmetic) as graph:  # noqa: PT012
        chain(x, 3)
        raise ZeroDivisionError
    assert len(arithmetic.memory.live) == before
    with pytest.raises(DispatchError, match="closed"):
        graph.replay()


def test_a_step_whose_memory_is_too_little_to_be_kept(arithmetic, monkeypatch):
    """The error comes when the block ends; the step has run, and the next can be captured."""
    x, room = on(arithmetic, np.ones(8)), [True]
    allocate = arithmetic.memory.allocate

    def limited(nbytes):
        if not room[0]:
            raise OutOfMemoryError
        return allocate(nbytes)

    monkeypatch.setattr(arithmetic.memory, "allocate", limited)
    with pytest.raises(OutOfMemoryError), capture(arithmetic) as graph:  # noqa: PT012
        y = chain(x, 4)
        room[0] = False
    assert y.numpy().tolist() == [16.0] * 8
    room[0] = True
    with capture(arithmetic) as graph:
        y = chain(x, 4)
    x.assign(np.full(8, 2, np.float32))
    graph.replay()
    assert y.numpy().tolist() == [32.0] * 8
