from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from propolis import Prepared
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.dispatch import FallbackLog


@pytest.fixture
def worker(fakes):
    """A device that adds, prepares weights, takes no strides and lacks the rest."""

    def dense(out, a, b, /):
        fakes.view(out)[...] = fakes.view(a) + fakes.view(b)

    def prepare(weight):
        return Prepared(None, 2_500_000, "dequantised to f32")

    device = fakes.device(
        fakes.impl(fn=dense, strided=False, plugin="adder"),
        fakes.impl("linear", prepare=prepare, plugin="blas"),
        fakes.impl("mul", dtypes={dtypes.f16}, plugin="blas"),
        fakes.copy,
    )
    x = Tensor.from_numpy(np.zeros((500, 500), np.float32), device.table.cpu)
    device.table.prepare(ops.linear, dtypes.f32, Tensor(x.storage, x.layout, x.dtype, device))
    small = Tensor.from_numpy(np.zeros((2, 2), np.float32), device)
    ops.add(small, small.transpose(0, 1))
    ops.mul(small, small)
    ops.mul(small, small)
    return device


def test_lines_for_people(worker):
    """How many ops are where and by whom, what was prepared, copied, and fell to the CPU."""
    why = "blas (dist-blas 1.0): a is f32; it takes f16"
    assert worker.table.placement.lines() == [
        "placement: 2 of 3 ops on fake:0 by adder (dist-adder 1.0), fake (dist-fake 1.0)",
        f"placement: on the cpu instead: mul ({why})",
        "weights: 1 for linear dequantised to f32 by blas: f32 1.0 MB -> 2.5 MB",
        "copies: 1 strided inputs made contiguous",
        f"fallback: mul ran on the cpu 2 times, 0.0 MB copied ({why})",
    ]


def test_the_same_for_machines(worker):
    """The dictionary holds what the lines say, in numbers."""
    why = "blas (dist-blas 1.0): a is f32; it takes f16"
    assert worker.table.placement.as_dict() == {
        "device": "fake:0",
        "ops": {"add": ["adder (dist-adder 1.0)"], "copy": ["fake (dist-fake 1.0)"]},
        "taken_out": [],
        "decomposed": {},
        "cpu_instead": {"mul": why},
        "prepared_weights": [
            {
                "op": "linear",
                "plugin": "blas",
                "what": "dequantised to f32",
                "count": 1,
                "dtypes": ["f32"],
                "nbytes_before": 1_000_000,
                "nbytes_after": 2_500_000,
            }
        ],
        "strided_copies": 1,
        "in_place_copies": 0,
        "fallbacks": [{"op": "mul", "reason": why, "calls": 2, "nbytes": 2 * 3 * 16}],
    }


def test_nothing_bound_yet(fakes):
    """At start, before any op, the summary is one honest line."""
    assert fakes.device().table.placement.lines() == ["placement: 0 of 0 ops on fake:0 by nobody"]


def test_an_op_that_is_split_counts_as_on_the_cpu(fakes):
    """An op that the device serves for some dtypes only is not counted as the device's."""
    device = fakes.device(fakes.impl(dtypes={dtypes.f32}))
    for dtype in (np.float32, np.float16):
        x = Tensor.from_numpy(np.zeros(2, dtype), device)
        ops.add(x, x)
    assert device.table.placement.lines()[:2] == [
        "placement: 0 of 1 ops on fake:0 by nobody",
        "placement: on the cpu instead: add (fake (dist-fake 1.0): a is f16; it takes f32)",
    ]


def test_a_call_declined_at_run_time_has_its_line(fakes):
    """The op is the device's once it takes a call, and the line says how often it did not."""
    small = fakes.impl(supports=lambda a, _: None if a.numel > 2 else "too small")
    device = fakes.device(small)
    x = Tensor.from_numpy(np.zeros(2, np.float32), device)
    ops.add(x, x)
    fell = "fallback: add ran on the cpu 1 times, 0.0 MB copied (fake (dist-fake 1.0): too small)"
    nobody = "placement: 0 of 1 ops on fake:0 by nobody"
    assert device.table.placement.lines() == [nobody, fell]
    x = Tensor.from_numpy(np.zeros(3, np.float32), device)
    ops.add(x, x)
    one = "placement: 1 of 1 ops on fake:0 by fake (dist-fake 1.0)"
    assert device.table.placement.lines() == [one, fell]


@pytest.mark.parametrize("asked", [False, True], ids=["bound", "asked"])
def test_who_is_taken_out_serves_nothing(fakes, asked):
    """Whoever raised is not among those that serve, and has a line with the reason."""

    def boom(out, a, b, /):
        msg = "boom"
        raise ValueError(msg)

    says = {"supports": lambda *_: None} if asked else {}
    first = fakes.impl(fn=boom, plugin="hasty", priority=300, **says)
    device = fakes.device(first, fakes.impl(plugin="sound"))
    x = Tensor.from_numpy(np.zeros(2, np.float32), device)
    ops.add(x, x)
    placement = device.table.placement
    assert placement.lines() == [
        "placement: 1 of 1 ops on fake:0 by sound (dist-sound 1.0)",
        "placement: taken out: add (f32) by hasty (dist-hasty 1.0): raised ValueError: boom",
    ]
    said = placement.as_dict()
    assert said["ops"] == {"add": ["sound (dist-sound 1.0)"]}
    who, why = "hasty (dist-hasty 1.0)", "raised ValueError: boom"
    assert said["taken_out"] == [{"implementation": "add (f32)", "plugin": who, "reason": why}]


@pytest.mark.parametrize("captured", [False, True])
def test_a_plugin_loses_one_of_its_kernels(fakes, captured):
    """Its other one is named, in a captured step too; what was taken out has its variant."""

    def boom(out, a, b, /):
        msg = "boom"
        raise ValueError(msg)

    fast = fakes.impl(fn=boom, variant="fast", priority=300, capture_safe=True)
    slow = fakes.impl(variant="slow", capture_safe=True)
    device = fakes.device(fast, slow)
    x = Tensor.from_numpy(np.zeros(2, np.float32), device)
    if captured:
        with capture(device) as graph:
            ops.add(x, x)
        graph.replay()
    else:
        ops.add(x, x)
    assert device.table.placement.lines() == [
        "placement: 1 of 1 ops on fake:0 by fake (dist-fake 1.0)",
        "placement: taken out: add (f32) fast by fake (dist-fake 1.0): raised ValueError: boom",
    ]


def test_a_summary_beside_calls_of_other_threads(fakes):
    """Whoever reads it while ops are bound gets one."""
    placement = fakes.device().table.placement
    many = [fakes.impl(plugin=f"p{i}") for i in range(50)]
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            for i, impl in enumerate(many):
                placement.served(f"op{i % 7}", dtypes.f32, impl)
                placement.taken_out(dtypes.f32, impl, "gone")

    threads = [threading.Thread(target=serve) for _ in range(2)]
    every = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            placement.as_dict()
            placement.lines()
    finally:
        sys.setswitchinterval(every)
        ended.set()
        for thread in threads:
            thread.join()


def test_who_declines_every_call_serves_none(fakes):
    """A candidate that leads and takes no call is not said to serve the op; the next one is."""
    shy = fakes.impl(plugin="shy", priority=300, supports=lambda *_: "never")
    device = fakes.device(shy, fakes.impl(plugin="sound"))
    x = Tensor.from_numpy(np.zeros(2, np.float32), device)
    ops.add(x, x)
    assert device.table.placement.servers == ["sound (dist-sound 1.0)"]


def test_a_table_has_a_log_of_its_own_without_one(cpu):
    """Tables made without a shared log still count."""
    table = DispatchTable(cpu, [], cpu)
    assert isinstance(table.fallbacks, FallbackLog)
    assert table.placement.fallbacks is table.fallbacks
