"""What dispatch may cost, times five: a slow machine passes, a mistake of design does not."""

from __future__ import annotations

import sys
import time

import numpy as np
from patience import patience

from propolis import Tensor
from propolis import ops


MARGIN = 5


def seconds(call, *args, loops=2000, rounds=7):
    """The least time of one call, which no tracer of coverage prolongs."""
    best, tracer = float("inf"), sys.gettrace()
    sys.settrace(None)
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(loops):
            call(*args)
        best = min(best, (time.perf_counter() - started) / loops)
    sys.settrace(tracer)
    return best


def test_a_bound_call_costs_what_the_function_costs(cpu, fakes):
    """0.2 us over calling the plugin's function directly."""

    def add(out, a, b, /):
        pass

    from propolis.dispatch import DispatchTable

    x = Tensor.from_numpy(np.zeros(4, np.float32), cpu)
    cpu.table = DispatchTable(cpu, [fakes.impl(fn=add, device="cpu")], cpu)
    bound = cpu.table.bind(ops.add, x.dtype)
    over = seconds(bound, x, x, x) - seconds(add, x, x, x)
    assert over <= MARGIN * patience(0.2e-6)


def test_a_guarded_call_costs_little_more(cpu, fakes):
    """0.2 us too, where another implementation could take over from one that raises."""

    def add(out, a, b, /):
        pass

    from propolis.dispatch import DispatchTable

    x = Tensor.from_numpy(np.zeros(4, np.float32), cpu)
    impls = [fakes.impl(fn=add, device="cpu", plugin=name) for name in ("one", "two")]
    cpu.table = DispatchTable(cpu, impls, cpu)
    bound = cpu.table.bind(ops.add, x.dtype)
    assert bound is not add
    over = seconds(bound, x, x, x) - seconds(add, x, x, x)
    assert over <= MARGIN * patience(0.2e-6)


def test_an_unbound_add_of_tiny_tensors(cpu):
    """5 us in all: inference, allocation, look-up and numpy's own time."""
    a = Tensor.from_numpy(np.ones(4, np.float32), cpu)
    b = Tensor.from_numpy(np.ones(4, np.float32), cpu)
    assert seconds(ops.add, a, b) <= MARGIN * patience(5e-6)
