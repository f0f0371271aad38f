"""
What dispatch costs: a bound op, an unbound op, the import, the first command.

Figures are the best of several rounds, contenders interleaved; budgets are issue 1's.
"""

from __future__ import annotations

import subprocess
import sys
import time
import timeit
from dataclasses import replace

import numpy as np

from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable


ROUNDS = 7
CALLS = 50_000


def main() -> None:
    """Print the table."""
    runtime = default_runtime()
    a, b = (Tensor.from_numpy(np.ones(4, np.float32)) for _ in range(2))
    out = ops.add(a, b)
    bound = runtime.cpu.table.bind(ops.add, dtypes.f32)
    direct = sys.modules["propolis_cpu_ref.ops_binary"].add
    (impl,) = runtime.cpu.table.trace(ops.add, dtypes.f32).chain
    # Two who can: the first is guarded, so that the second may take over.
    fast = replace(impl, provenance=replace(impl.provenance, plugin="fast"), priority=100)
    guarded = DispatchTable(runtime.cpu, [fast, impl], runtime.cpu).bind(ops.add, dtypes.f32)
    x, y, z = a.numpy(), b.numpy(), out.numpy()
    contenders = {
        "numpy add": lambda: np.add(x, y, out=z),
        "the plugin's function": lambda: direct(out, a, b),
        "bound op": lambda: bound(out, a, b),
        "bound op, guarded": lambda: guarded(out, a, b),
        "ops.add.into(out, a, b)": lambda: ops.add.into(out, a, b),
        "ops.add(a, b)": lambda: ops.add(a, b),
    }
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(ROUNDS):
        for name, call in contenders.items():
            best[name] = min(best[name], timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    for name, microseconds in best.items():
        print(f"{name:28} {microseconds:7.2f} us")
    for name in ("bound op", "bound op, guarded"):
        over = best[name] - best["the plugin's function"]
        print(f"{name + ' over direct':28} {over:7.2f} us   (budget 0.2)")
    print(f"{'unbound op in all':28} {best['ops.add(a, b)']:7.2f} us   (budget 5)")
    for label, budget, command in (
        ("import propolis", 0.3, ["-c", "import propolis"]),
        ("propolis plugins", 1.0, ["-c", "from propolis.cli import main; main(['plugins'])"]),
    ):
        start = _seconds(["-c", "pass"])
        print(f"{label:28} {_seconds(command) - start:7.3f} s    (budget {budget})")


def _seconds(arguments: list[str]) -> float:
    """Wall time of a Python process, the best of some."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
