"""
What the draw of a token costs on the CPU: the op, the worker's own way, and transformers' on torch.

Contenders take turns; the best of several rounds. Logits are random normal numbers times 3, of as
many tokens as SmolLM2 and Llama 3 have.

    python benches/draws.py [--rows 1,8]
"""

from __future__ import annotations

import argparse
import os
import timeit
from typing import TYPE_CHECKING
from typing import Any


os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy: it pins BLAS to another CPU's kernels

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis_workers.llm.sampling import Sampler
from propolis_workers.llm.sampling import SamplingParams


if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, CALLS = 7, 20
VOCABULARIES = (49152, 128256)
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top_k 40": {"top_k": 40},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 40, top_p 0.9": {"top_k": 40, "top_p": 0.9},
}


def by_torch(logits: np.ndarray, how: dict[str, Any]) -> Callable[[], object] | None:
    """What transformers' generate() does of logits; None without transformers."""
    try:
        import torch
        from transformers import LogitsProcessorList
        from transformers import TemperatureLogitsWarper
        from transformers import TopKLogitsWarper
        from transformers import TopPLogitsWarper
    except ImportError:
        return None
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
    if "top_k" in how:
        warpers.append(TopKLogitsWarper(how["top_k"]))
    if "top_p" in how:
        warpers.append(TopPLogitsWarper(how["top_p"]))
    given, ids = torch.from_numpy(logits), torch.zeros((len(logits), 1), dtype=torch.long)
    return lambda: torch.multinomial(torch.softmax(warpers(ids, given), -1), 1)


def contenders(logits: np.ndarray, how: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """A draw of each row, as each of them has it."""
    rows = len(logits)
    given = [Tensor.from_numpy(one) for one in (logits, np.arange(5, 5 + rows))]
    given.append(Tensor.from_numpy(np.full(rows, 0.8, np.float32)))
    cuts = {"k": how.get("top_k", 0)}
    if "top_p" in how:
        cuts["top_p"] = Tensor.from_numpy(np.full(rows, how["top_p"], np.float32))
    sampler = Sampler(SamplingParams(temperature=0.8, seed=1, **how))
    found: dict[str, Callable[[], object]] = {
        "op": lambda: ops.draw(*given, **cuts),
        "worker": lambda: [sampler.sample(row, []) for row in logits],
    }
    peer = by_torch(logits, how)
    return found if peer is None else {**found, "transformers": peer}


def best_of(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of each, in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            best[name] = min(best[name], timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,8")
    counts = [int(one) for one in parser.parse_args().rows.split(",")]
    print("| tokens | rows | settings | op, us | worker, us | transformers, us | of transformers |")
    print("|---|---|---|---:|---:|---:|---:|")
    for width in VOCABULARIES:
        for rows in counts:
            logits = np.random.default_rng(0).normal(0, 3, (rows, width)).astype(np.float32)
            for name, how in SETTINGS.items():
                best = best_of(contenders(logits, how))
                peer = best.get("transformers")
                told = f"{peer:.0f} | {best['op'] / peer:.2f}" if peer else "not there | "
                figures = f"{best['op']:.0f} | {best['worker']:.0f} | {told}"
                print(f"| {width} | {rows} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
