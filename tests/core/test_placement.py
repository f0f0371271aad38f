from __future__ import annotations

import numpy as np
import pytest

from propolis import Prepared
from propolis import Tensor
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
    """The op stays the device's, and the line says how often it was not."""
    device = fakes.device(fakes.impl(supports=lambda *_: "too small"))
    x = Tensor.from_numpy(np.zeros(2, np.float32), device)
    ops.add(x, x)
    assert device.table.placement.lines() == [
        "placement: 1 of 1 ops on fake:0 by fake (dist-fake 1.0)",
        "fallback: add ran on the cpu 1 times, 0.0 MB copied (fake (dist-fake 1.0): too small)",
    ]


def test_a_table_has_a_log_of_its_own_without_one(cpu):
    """Tables made without a shared log still count."""
    table = DispatchTable(cpu, [], cpu)
    assert isinstance(table.fallbacks, FallbackLog)
    assert table.placement.fallbacks is table.fallbacks
