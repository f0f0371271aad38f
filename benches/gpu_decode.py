"""
SmolLM2 on a GPU: llama.cpp's greedy tokens, its logits, and the speed of a decode step.

Prints the placement summary too: what of the step did not run on the device.  Exit code
1 when a token differs.

    python benches/gpu_decode.py [--model FILE] [--device rocm:0] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from propolis import default_runtime
from propolis_workers.llm import LLM


GOLDEN = Path(__file__).parents[1] / "tests/data/smollm2/greedy_llamacpp_f32.json"
PROMPT = 512
DECODED = 128
ROUNDS = 5


def runs(llm: LLM, golden: dict) -> list[dict[str, object]]:
    """Each greedy run of the golden data: its name and how many tokens agree."""
    found: list[dict[str, object]] = []
    for run in golden["runs"]:
        generation = llm.complete(run["prompt"], max_tokens=len(run["output_ids"]))
        "".join(generation)
        ids, wanted = generation.finish.ids, run["output_ids"]
        agree = next((i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b), None)
        same = len(wanted) if agree is None and len(ids) == len(wanted) else agree or 0
        found.append({"name": run["name"], "agree": same, "of": len(wanted)})
    return found


def logits_error(llm: LLM, golden: dict) -> float:
    """Normalised mean square error of the logits of 32 tokens, of the first 20 of each."""
    logits = llm.engine(32).logits_of(golden["logits"]["ids"]).astype(np.float64)
    truth = np.array(golden["logits"]["first20"])
    return float(((logits[:, :20] - truth) ** 2).mean() / (truth**2).mean())


def speed(llm: LLM) -> dict[str, float]:
    """Tokens a second: of a prompt, and of decoding (medians of some rounds)."""
    engine = llm.engine(1024)
    ids = [1 + i % 1000 for i in range(PROMPT)]
    prefill, decode = [], []
    for _ in range(ROUNDS):
        engine.truncate(0)
        start = time.perf_counter()
        engine.prefill(ids)
        prefill.append(PROMPT / (time.perf_counter() - start))
        engine.decode(1)
        start = time.perf_counter()
        for token in ids[:DECODED]:
            engine.decode(token)
        decode.append(DECODED / (time.perf_counter() - start))
    return {"prefill": statistics.median(prefill[1:]), "decode": statistics.median(decode[1:])}


def main() -> int:
    """Run and print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--device", default="rocm:0")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))

    llm = LLM.load(arguments.model, device=default_runtime().device(arguments.device))
    results = runs(llm, golden)
    for result in results:
        print("greedy {name}: {agree} of {of} tokens are llama.cpp's".format(**result), flush=True)
    error = logits_error(llm, golden)
    print(f"logits: NMSE {error:.1e}", flush=True)
    rates = speed(llm)
    print("prefill of 512 tokens {prefill:.0f}/s, decode {decode:.1f}/s".format(**rates))
    print("\n".join(llm.model.device.table.placement.lines()))
    if arguments.json:
        report = {"greedy": results, "logits_nmse": error, **rates}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(r["agree"] == r["of"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
