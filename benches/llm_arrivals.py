"""
Answers that come and go: so many at once, and as one ends another's prompt comes.

What a server computes under load, without the server: each request has a prompt of random length,
which nobody else shares, and an answer of random length.  Steps with prompts are captured as their
like comes again, or computed anew: both take turns.  Where a device has a queue none of them is
captured, and both rows are of the same.

    python benches/llm_arrivals.py [--streams 16] [--prompt 8,48] [--decoded 16,96]
        [--requests 200]
        [--shape 1b] [--device rocm:0] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from _random_model import SHAPES
from _random_model import write_random_llama

from propolis import default_runtime
from propolis_workers.llm import LLM
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.default_model import find_model
from propolis_workers.llm.sampling import SamplingParams


def main() -> None:
    """Run both in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", default="8,48", help="tokens of a prompt, from and to")
    parser.add_argument("--decoded", default="16,96", help="tokens of an answer, from and to")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape")
    parser.add_argument("--device", default="")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    runtime = default_runtime()
    device = runtime.device(asked.device or None)
    with tempfile.TemporaryDirectory() as folder:
        if asked.shape:
            path = write_random_llama(Path(folder) / "random.gguf", asked.shape, "Q4_K")
        else:
            path = find_model(runtime.config)
        llm = LLM.load(path, device=device)
        engines = {"captured": _engine(llm, asked), "anew": _engine(llm, asked)}
        engines["anew"].steps.shorts = False
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(1 + asked.rounds):
            for name, engine in engines.items():
                rates[name].append(_rate(llm, engine, asked, number))
    print("| steps with prompts | tokens/s, answers' | ratio |\n|---|---|---|")
    figures = {name: statistics.median(rate[1:]) for name, rate in rates.items()}
    for name, figure in figures.items():
        print(f"| {name} | {figure:.0f} | {figure / figures['anew']:.2f} |")


def _engine(llm: LLM, asked: argparse.Namespace) -> BatchEngine:
    context = int(asked.prompt.split(",")[1]) + int(asked.decoded.split(",")[1]) + 1
    return BatchEngine(
        llm, context=context, most=asked.streams, tokens=asked.streams * (context + 16)
    )


def _rate(llm: LLM, engine: BatchEngine, asked: argparse.Namespace, number: int) -> float:
    """Tokens of answers a second, from the first that ends to the last that begins."""
    rng = np.random.default_rng(number)
    vocabulary = llm.model.config.vocab_size
    added = tokens = 0
    start = 0.0

    def some(span: str) -> int:
        least, most = map(int, span.split(","))
        return int(rng.integers(least, most + 1))

    def add() -> None:
        nonlocal added
        ids = rng.integers(256, vocabulary - 2, some(asked.prompt)).tolist()
        params = SamplingParams(temperature=0.0)
        wanted = Request(prompt=ids, params=params, max_tokens=some(asked.decoded))
        engine.add(added, wanted)
        added += 1

    for _ in range(asked.streams):
        add()
    while added < asked.requests:
        drawn = engine.step()
        tokens += len(drawn) if start else 0
        for one in drawn:
            if one.finish is not None:
                start = start or time.perf_counter()
                add()
    rate = tokens / (time.perf_counter() - start)
    while engine.busy:
        engine.step()
    return rate


if __name__ == "__main__":
    main()
