"""
Greedy decoding on the simulated GPU, in a process of its own, for test_decode.py.

Run ``decode.py steps``, ``decode.py faults FAULT POLICY`` or ``decode.py batch FAULT N``, then
MODEL IDS COUNT; it prints JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from propolis import Config
from propolis import Runtime
from propolis.errors import PropolisError
from propolis_workers.llm import LLM
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request


SIMULATOR = ctypes.CDLL(str(Path(os.environ["ROCM_PATH"], "lib", "libamdhip64.so")))
SIMULATOR.hipsim_count.restype = ctypes.c_longlong


def start(cache, **settings):
    """A runtime that has not heard of what happened to others; ``cache``: a folder."""
    Path(cache, "quarantine.json").unlink(missing_ok=True)
    return Runtime.start(Config(device="rocm:0", cache_dir=cache, **settings))


@contextmanager
def private_cache():
    """A cache of our own, but for the compiled kernels."""
    kernels = Config.load().cache_dir / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        Path(folder, "kernels").symlink_to(kernels)
        yield Path(folder)


def count(what):
    """How often something has happened on the simulator."""
    return SIMULATOR.hipsim_count(what.encode())


def greedy(engine, ids, number, costs=None):
    """Tokens drawn after a prompt; ``costs`` is told what each step took."""
    pool, known = engine.model.device.pool, engine.model.config.vocab_size
    drawn = [int(engine.prefill(ids).argmax())]
    while len(drawn) < number:
        before = count("launch"), count("malloc"), pool.statistics().allocations
        drawn.append(engine.decode_likeliest(drawn[-1], known)[0])
        after = count("launch"), count("malloc"), pool.statistics().allocations
        if costs is not None:
            costs.append([now - then for now, then in zip(after, before, strict=True)])
    return drawn


def steps(model, ids, number):
    """One run on the device alone: tokens, what each step cost, and who served which op."""
    with private_cache() as cache:
        runtime = start(cache, fallback="error")
        engine = LLM.load(model, runtime=runtime).engine(len(ids) + number)
        costs = []
        drawn = greedy(engine, ids, number, costs)
        ((graph, _),) = engine._steps.values()
        return {
            "ids": drawn,
            "costs": costs,
            "calls": len(graph),
            "queued": len(graph._joined or ()),
            "ahead": engine._ahead is not None,
            "placement": engine.model.device.table.placement.as_dict(),
            "lines": engine.model.device.table.placement.lines(),
        }


def batch(fault, number_of_it, model, ids, number):
    """
    Many sequences at once, whose lengths differ; the ``number_of_it``-th ``fault`` fails.

    Of each its tokens, and the ops that did not run on the device.
    """
    with private_cache() as cache:
        runtime = start(cache, fallback="error")
        llm = LLM.load(model, runtime=runtime)
        engine = BatchEngine(llm, context=64, most=4, tokens=96)
        for key in range(6):
            prompt = [*ids, key, *ids[: key % 3]]
            wanted = Request(prompt=prompt, params=SamplingParams(), max_tokens=number + 3 * key)
            engine.add(key, wanted)
        if fault:
            SIMULATOR.hipsim_inject(fault.encode(), number_of_it.encode())
        found = {}
        while engine.busy:
            for drawn in engine.step():
                if drawn.finish is not None:
                    found[drawn.key] = drawn.finish.ids
        placement = llm.model.device.table.placement.as_dict()
        return {
            "ids": [found[key] for key in range(6)],
            "elsewhere": [placement["cpu_instead"], placement["fallbacks"]],
            "taken": engine.blocks.taken,
        }


def outcome(runtime, model, ids, number):
    """The tokens of a run; or the error's class and text."""
    try:
        return greedy(LLM.load(model, runtime=runtime).engine(len(ids) + number), ids, number)
    except PropolisError as exc:
        return [type(exc).__name__, str(exc)]


def faults(fault, policy, model, ids, number):
    """
    A run for each n, whose n-th ``fault`` ("malloc", "launch") fails, until none does.

    Of each: the outcome, that of another run after it, and how many calls fell to the CPU.
    """
    found = []
    with private_cache() as cache:
        while True:
            runtime = start(cache, fallback=policy, direct_allocations=fault == "malloc")
            device = runtime.device("rocm:0")
            n = len(found) + 1
            SIMULATOR.hipsim_inject(fault.encode(), str(n).encode())
            first = outcome(runtime, model, ids, number)
            if count(fault) < n:
                return found
            fell = sum(tally["calls"] for tally in device.table.placement.as_dict()["fallbacks"])
            found.append([first, outcome(runtime, model, ids, number), fell])


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    *fault, path, prompt, tokens = rest
    run = {"steps": steps, "faults": faults, "batch": batch}[command]
    json.dump(run(*fault, path or None, json.loads(prompt), int(tokens)), sys.stdout)
