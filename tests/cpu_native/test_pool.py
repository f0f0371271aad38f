"""The threads that share a call."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops


M, N, K = 24, 640, 512

PROGRAM = """
import os, sys, threading, time
import numpy as np
from propolis import Config, Runtime, Tensor, dtypes, ops
runtime = Runtime.start(Config(plugins=["cpu_native", "cpu_ref"], threads=int(sys.argv[1])))
device = runtime.cpu
rng = np.random.default_rng(0)
def normal(*shape):
    return Tensor.from_numpy(rng.normal(0, 1, shape).astype(np.float32), device)
w = ops.quantize(normal(640, 512), dtypes.q4_0)
x = normal(24, 512)
def product():
    return ops.qmatmul(x, w).numpy()
expected = product()
"""


@pytest.fixture
def product(runtime):
    """Computes the same product each time, by two threads."""
    device = runtime(threads=2).cpu
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (N, K)).astype(np.float32)
    w = ops.quantize(Tensor.from_numpy(values, device), dtypes.q4_0)
    x = Tensor.from_numpy(rng.normal(0, 1, (M, K)).astype(np.float32), device)
    return lambda: ops.qmatmul(x, w).numpy()


def test_calls_from_many_threads(product):
    """Each gets its own result: one call has the helpers, others do their work themselves."""
    expected = product()
    results = []

    def work():
        results.extend(np.array_equal(product(), expected) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 160


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_count_of_threads_changes_no_bit(propolis, threads):
    """Results are the same however many share the work."""
    program = PROGRAM + "print(expected.tobytes().hex())"
    one, some = (propolis("-c", program, str(n)) for n in (1, threads))
    assert one.returncode == 0, one.stderr
    assert one.stdout == some.stdout


def test_a_fork_computes(propolis):
    """A child of fork() has no helpers of its parent's, and starts its own."""
    program = PROGRAM + (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if np.array_equal(product(), expected) else 3)\n"
        "assert np.array_equal(product(), expected)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    done = propolis("-c", program, "2")
    assert done.stdout.strip() == "0", done.stderr


def test_idle_helpers_use_no_cpu(propolis):
    """Half a second after the last call nobody looks for work: CPU time stands still."""
    program = PROGRAM + (
        "time.sleep(0.5)\n"
        "before = time.process_time()\n"
        "time.sleep(1)\n"
        "print(time.process_time() - before)\n"
    )
    done = propolis("-c", program, "4")
    assert float(done.stdout) < 0.1, done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's CPU masks")
def test_one_core_means_one_thread(propolis):
    """A process that may run on one core takes no helpers: there are as many threads as cores."""
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        + PROGRAM.replace("int(sys.argv[1])", "0")
        + "print(device.threads, len(os.listdir('/proc/self/task')))\n"
    )
    one = propolis("-c", program)
    assert one.stdout.split() == ["1", "1"], one.stderr
