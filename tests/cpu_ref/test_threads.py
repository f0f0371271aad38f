"""Work that is split over threads gives the bits that one thread gives."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_cpu_ref import _threads
from propolis_cpu_ref import ops_quantized
from propolis_cpu_ref import plugin
from propolis_cpu_ref._threads import _blas
from propolis_cpu_ref._threads import _Trial
from propolis_cpu_ref._threads import grain
from propolis_cpu_ref._threads import over_rows
from propolis_cpu_ref._threads import share
from propolis_cpu_ref._threads import with_help


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]


@pytest.fixture
def with_threads(cpu, monkeypatch):
    """Run something with so many threads."""

    def call(count, function):
        monkeypatch.setattr(cpu, "threads", count)
        return function()

    return call


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("least", [0, 1, 3, 1000])
def test_slices_cover_the_rows(threads, rows, least):
    """Each row is in one slice; there are no more slices than threads, or than work for them."""
    slices = []
    over_rows(threads, rows, least, slices.append)
    covered = sorted(i for part in slices for i in range(part.start, part.stop))
    assert list(range(rows)) == covered
    assert 1 <= len(slices) <= threads
    assert len(slices) == 1 or rows // len(slices) >= least


def test_slices_run_at_once():
    """Slices wait for each other without a deadlock: each has its own thread."""
    together = threading.Barrier(2, timeout=30)
    names = []

    def work(part):
        together.wait()
        names.append((part.start, threading.current_thread().name))

    over_rows(2, 10, 1, work)
    here = threading.current_thread().name
    by_start = dict(sorted(names))
    assert here == by_start[0]
    assert by_start[5].startswith("propolis-cpu-ref")


@pytest.mark.parametrize("failing", [0, 5])
def test_errors_arrive(failing):
    """An error in any slice reaches the caller."""

    def work(part):
        if part.start == failing:
            msg = "here"
            raise ValueError(msg)

    with pytest.raises(ValueError, match="here"):
        over_rows(2, 10, 1, work)


def blas_threads():
    """The number of threads of numpy's BLAS."""
    return [library.get_num_threads() for library in _blas()]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_items_are_done_once(threads, count):
    """Each item is taken once, by no more threads than asked for."""
    done = []
    share(threads, range(count), lambda items: done.append(list(items)))
    assert list(range(count)) == sorted(item for items in done for item in items)
    assert 1 <= len(done) <= threads


def test_items_are_done_at_once_by_serial_blas():
    """Threads work on items side by side, with one BLAS thread each, and all get theirs back."""
    before = blas_threads()
    together = threading.Barrier(2, timeout=30)
    seen = []

    def work(items):
        for _ in items:
            together.wait()
            seen.append(set(blas_threads()))

    share(2, range(2), work)
    assert [{1}, {1}] == seen
    assert before == blas_threads() != []


def test_callers_in_several_threads_give_blas_back():
    """Where calls overlap, the last that ends gives BLAS the threads that the first found."""
    before = blas_threads()
    first, second = threading.Event(), threading.Event()
    seen = []

    def early(items):
        for _ in items:
            first.set()
            second.wait(30)

    def late(items):
        for _ in items:
            second.set()
            caller.join(30)
            seen.append(set(blas_threads()))

    caller = threading.Thread(target=share, args=(2, range(2), early))
    caller.start()
    first.wait(30)
    share(2, range(2), late)
    assert [{1}, {1}] == seen
    assert before == blas_threads()


@pytest.mark.parametrize("failing", ["MainThread", "propolis-cpu-ref"])
def test_errors_of_items_arrive(failing):
    """An error in any thread reaches the caller, ends the others, and gives BLAS back."""
    before = blas_threads()
    together = threading.Barrier(2, timeout=30)
    later = []

    def work(items):
        next(items)
        together.wait()
        if threading.current_thread().name.startswith(failing):
            msg = "here"
            raise ValueError(msg)
        later.extend(items)

    with pytest.raises(ValueError, match="here"):
        share(2, range(1000), work)
    assert len(later) <= 998
    assert before == blas_threads()


@pytest.fixture
def asking(monkeypatch):
    """Helpers are asked, however it went lately."""
    monkeypatch.setattr(_Trial, "helped", lambda _: True)


PARTS = [slice(0, 3), slice(3, 4), slice(4, 10), slice(10, 11)]


def columns(part):
    """Two rows of numbers that no other columns have."""
    return np.stack([np.arange(part.start, part.stop), np.arange(-part.stop, -part.start)])


WHOLE = columns(slice(0, 11))
WHOLE[1] = np.concatenate([columns(part)[1] for part in PARTS])


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_help_fills_every_part(threads):
    """All columns are there when the call returns, and BLAS has its threads back."""
    before = blas_threads()
    for _ in range(20):
        out = np.full((2, 11), 99)
        with_help(threads, out, PARTS, columns)
        np.testing.assert_array_equal(WHOLE, out)
    assert before == blas_threads()


@pytest.mark.usefixtures("asking")
def test_help_is_taken():
    """Caller and helper work side by side, each with one BLAS thread."""
    together = threading.Barrier(2, timeout=30)
    seen = {}

    def work(part):
        if part in (PARTS[0], PARTS[-1]):  # where each of them begins
            together.wait()
        seen[part.start] = threading.current_thread().name, set(blas_threads())
        return columns(part)

    out = np.zeros((2, 11), int)
    with_help(2, out, PARTS, work)
    np.testing.assert_array_equal(WHOLE, out)
    assert seen[0] == (threading.current_thread().name, {1})
    assert seen[10][0].startswith("propolis-cpu-ref-help")
    assert seen[10][1] == {1}


@pytest.mark.usefixtures("asking")
def test_nobody_waits_for_a_helper_that_sleeps():
    """What a helper holds is done by the caller; what it brings later is written nowhere."""
    begun, awake, ended = threading.Event(), threading.Event(), threading.Event()

    def work(part):
        if threading.current_thread().name.startswith("propolis-cpu-ref-help"):
            begun.set()
            awake.wait(30)
            ended.set()
            return columns(part) + 1000
        begun.wait(30)
        return columns(part)

    out = np.zeros((2, 11), int)
    with_help(2, out, PARTS, work)
    np.testing.assert_array_equal(WHOLE, out)
    assert not ended.is_set()
    awake.set()
    assert ended.wait(30)
    test_help_fills_every_part(2)  # it is there for the next call, done with the last one
    np.testing.assert_array_equal(WHOLE, out)


@pytest.mark.usefixtures("asking")
def test_errors_of_helpers_are_the_callers():
    """What fails for a helper is done again by the caller: its error is the one that arrives."""
    together = threading.Barrier(2, timeout=30)
    failing = True

    def work(part):
        helper = threading.current_thread().name.startswith("propolis-cpu-ref-help")
        if part in (PARTS[0], PARTS[-1]) and (helper or part is PARTS[0]):
            together.wait()
        if helper or (failing and part is PARTS[-1]):
            msg = "here"
            raise ValueError(msg)
        return columns(part)

    before = blas_threads()
    out = np.zeros((2, 11), int)
    with pytest.raises(ValueError, match="here"):
        with_help(2, out, PARTS, work)
    failing = False
    with_help(2, out, PARTS, work)
    np.testing.assert_array_equal(WHOLE, out)
    assert before == blas_threads()


@pytest.mark.usefixtures("asking")
def test_helpers_have_the_callers_error_state():
    """What the caller asked numpy to ignore is ignored by helpers too."""
    together = threading.Barrier(2, timeout=30)
    seen = []

    def work(part):
        if part in (PARTS[0], PARTS[-1]):
            together.wait()
            seen.append(np.geterr()["over"])
        return columns(part)

    with np.errstate(all="ignore"):
        with_help(2, np.zeros((2, 11), int), PARTS, work)
    assert ["ignore", "ignore"] == seen


def test_the_faster_way_is_taken():
    """Help is asked for while that is faster, and the other way is tried now and then."""
    trial = _Trial()
    costs = {True: 1.0, False: 2.0}

    def ways(calls):
        taken = []
        for _ in range(calls):
            taken.append(trial.helped())
            trial.took(costs[taken[-1]], helped=taken[-1])
        return taken

    assert ways(64).count(True) == 62
    costs[True] = 9.0  # others want the cores
    assert ways(64)[-30:].count(True) <= 1
    costs[True] = 0.5
    assert ways(4000)[-64:].count(True) == 62


def test_each_size_learns_for_itself(monkeypatch):
    """That small calls are faster alone keeps no helper from a large one, and the reverse."""
    asked = []
    slow = {(100, True), (1000, False)}  # (size, helped)
    clock = [0.0]
    monkeypatch.setattr(_threads.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(_threads, "_trial", cache(lambda _: _Trial()))

    class Shared:
        """Help that takes a time of our choice."""

        def __init__(self, out, parts, work):
            asked.append(out.size)
            self.size = out.size

        def run(self, helpers):
            clock[0] += 3.0 if (self.size, True) in slow else 1.0

    def work(part):
        clock[0] += 1.5 if (size, False) in slow else 0.5
        return np.zeros((1, part.stop - part.start))

    monkeypatch.setattr(_threads, "_Shared", Shared)
    monkeypatch.setattr(_threads, "_blas", lambda: [None])
    monkeypatch.setattr(_threads, "_serial_blas", nullcontext)
    for size in [100, 1000] * 320:
        with_help(2, np.empty((1, size)), [slice(0, 9), slice(9, size)], work, size)
    assert asked.count(100) < 60
    assert asked.count(1000) > 300


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows(with_threads, draw, rows):
    """A product of few rows is right on any number of threads, and the same each time."""
    x, w, shift = (
        draw(s, dtypes.f32, i) for i, s in enumerate([(rows, 700), (1500, 700), (1500,)])
    )
    truth = x.astype(np.float64) @ w.T.astype(np.float64) + shift
    for threads in (1, 2, 3):
        results = {
            with_threads(
                threads,
                lambda: ops.linear(*map(Tensor.from_numpy, (x, w, shift))).numpy().tobytes(),
            )
            for _ in range(5)
        }
        (raw,) = results
        np.testing.assert_allclose(
            np.frombuffer(raw, "f4").reshape(truth.shape), truth, rtol=1e-4, atol=1e-3
        )


def test_numpy_error_state_is_the_callers():
    """What the caller asked numpy to ignore is ignored in every thread, and nowhere after."""
    seen = []
    with np.errstate(all="ignore"):
        over_rows(2, 10, 1, lambda _: seen.append(np.geterr()["over"]))
    assert ["ignore", "ignore"] == seen
    over_rows(2, 10, 1, lambda _: seen.append(np.geterr()["over"]))
    assert ["warn", "warn"] == seen[2:]


@pytest.mark.parametrize("width", [0, 1, 99, 10**9])
def test_grain(width):
    """A thread gets a hundred thousand elements or more, and at least one row."""
    assert grain(width) >= 1
    assert grain(width) * max(width, 1) >= 100_000


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("shape", [(700, 600), (3, 200_003), (450_001, 1)])
def test_silu_mul(with_threads, draw, dtype, shape):
    """silu_mul gives the same bits on one thread and on several."""
    gate, up = (Tensor.from_numpy(draw(shape, dtype, seed, 5.0)) for seed in (1, 2))
    one, two, three = (
        with_threads(n, lambda: ops.silu_mul(gate, up).numpy().tobytes()) for n in (1, 2, 3)
    )
    assert one == two == three


CALLS = {
    "linear by rows": (ops.linear, [(4500, 40), (24, 40), (24,)], {}),
    "linear by outputs": (ops.linear, [(3, 100, 400), (200, 400), (200,)], {}),
    "conv2d": (ops.conv2d, [(2, 16, 40, 40), (40, 16, 3, 3), (40,)], {"padding": 1}),
    "grouped conv2d": (ops.conv2d, [(1, 32, 60, 60), (64, 8, 3, 3)], {"groups": 4}),
    "strided conv2d": (ops.conv2d, [(2, 32, 91, 60), (32, 32, 3, 3)], {"stride": 2}),
    "wide conv1d": (ops.conv1d, [(3, 16, 3000), (32, 16, 5), (32,)], {"dilation": 2}),
    "attention": (ops.attention, [(2, 700, 3, 40), (2, 300, 3, 40), (2, 300, 3, 40)], {}),
    "causal attention": (
        ops.attention,
        [(1, 400, 6, 64)] + [(1, 500, 2, 64)] * 2,
        {"causal": True},
    ),
    "group_norm": (ops.group_norm, [(2, 96, 50, 50), (96,), (96,)], {"groups": 32}),
    "group_norm_silu": (ops.group_norm_silu, [(2, 64, 90, 90), (64,), (64,)], {"groups": 8}),
    "layer_norm": (ops.layer_norm, [(2, 900, 320), (320,), (320,)], {}),
    "gelu_erf": (ops.gelu_erf, [(2, 700, 300)], {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_large_calls(with_threads, draw, name):
    """Calls that are large enough to share give, on any number of threads, f64's result."""
    op, shapes, attributes = CALLS[name]
    arrays = [draw(shape, dtypes.f32, seed) for seed, shape in enumerate(shapes)]
    truth = op(*(Tensor.from_numpy(a.astype(np.float64)) for a in arrays), **attributes).numpy()
    for threads in (1, 2, 3):
        call = with_threads(threads, lambda: op(*map(Tensor.from_numpy, arrays), **attributes))
        np.testing.assert_allclose(call.numpy(), truth, rtol=1e-5, atol=1e-5 * np.abs(truth).max())


def test_pixels_with_channels_first(with_threads, draw):
    """A linear layer of the pixels of images, a transposed view, gives what a copy gives."""
    images, w = (draw(s, dtypes.f32, 1) for s in ((2, 40, 1100), (24, 40)))
    view = Tensor.from_numpy(images).transpose(1, 2)
    result = with_threads(2, lambda: ops.linear(view, Tensor.from_numpy(w)).numpy())
    truth = images.astype(np.float64).transpose(0, 2, 1) @ w.T.astype(np.float64)
    np.testing.assert_allclose(result, truth, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("block", [d for d in dtypes.ALL if d.is_block], ids=repr)
def test_blocks(with_threads, cpu, block):
    """Dequantising, and preparing weights, gives the same bits on one thread and on two."""
    count = (2 << 20) // block.block_size + 3
    raw = np.random.default_rng(3).integers(0, 256, count * block.block_bytes, np.uint8)
    w = Tensor.from_blocks(raw, block, (count, block.block_size))
    one, two = (with_threads(n, lambda: ops.dequantize(w).numpy().tobytes()) for n in (1, 2))
    assert one == two
    key = ops.qmatmul.key(dtypes.f32, block)
    prepared = with_threads(2, lambda: cpu.table.prepare(ops.qmatmul, key, w))
    assert one == prepared.prepared[ops_quantized.prepare].tobytes()


def test_every_op_claims_to_be_deterministic(cpu):
    """There is one implementation of each op, for all its dtypes, and each claims equal bits."""
    impls = list(plugin.propolis_ops(cpu))
    assert sorted(ops.catalogue()) == sorted(impl.op for impl in impls)
    for impl in impls:
        assert impl.deterministic
        allowed = ops.catalogue()[impl.op].dtypes
        for name, kinds in allowed.items():
            given = impl.dtypes.get(name, kinds) if isinstance(impl.dtypes, dict) else impl.dtypes
            assert kinds <= frozenset(given), f"{impl.op}: {name}"


def test_other_devices_get_nothing():
    """The reference is for the CPU alone, and says who it is."""

    class Card:
        kind = "rocm"

    assert [] == list(plugin.propolis_ops(Card()))
    assert plugin.propolis_plugin().name == "cpu_ref"


@pytest.mark.parametrize(("threads", "changed"), [(1, True), (0, False)])
def test_fewer_threads_than_cores_limit_blas_too(threads: int, changed: bool) -> None:
    """`threads = 1` holds for numpy's BLAS too; the default leaves BLAS alone."""
    code = (
        "import numpy, threadpoolctl;"
        "from propolis import Config, Runtime;"
        "count = lambda: max(p['num_threads'] for p in threadpoolctl.threadpool_info());"
        f"before = count(); Runtime.start(Config(threads={threads})); print(before, count())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    before, after = done.stdout.split()
    assert ("1" if changed else before) == after
