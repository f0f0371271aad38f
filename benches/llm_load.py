"""
A model of 1B in Q4_K on the CPU: seconds from start to first logits, and memory.

The peer is llama.cpp, where llama-cpp-python is installed.  Each round runs every contender once,
in a process of its own, with the file in the page cache; figures are medians.

    python benches/llm_load.py [tiny | 1b | 8b]
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from _common import child
from _common import medians
from _random_model import write_random_llama


ROUNDS = 3
IDS = (1, 2, 3)
STARTED = time.perf_counter()


def main() -> None:
    """Run the rounds and print the table."""
    shape = sys.argv[1] if len(sys.argv) > 1 else "1b"
    contenders = ["propolis"]
    if importlib.util.find_spec("llama_cpp"):
        contenders.append("llama.cpp")
    else:
        print("llama_cpp is not installed: no peer")
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_llama(Path(folder) / "m.gguf", shape)
        path.read_bytes()
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name in contenders:
                rounds[name].append(child(__file__, name, str(path)))
        print(f"{shape}: a file of {path.stat().st_size / 1e9:.2f} GB")
    results = {name: medians(figures) for name, figures in rounds.items()}
    ours = results["propolis"]
    for figure, unit in {"first_logits": "s", "peak_gb": "GB"}.items():
        line = f"{figure:12} {ours[figure]:8.2f} {unit:3}"
        for name, theirs in results.items():
            if name != "propolis":
                line += f"   {name} {theirs[figure]:.2f}, ratio {ours[figure] / theirs[figure]:.2f}"
        print(line)


def _propolis(path: str) -> None:
    from propolis_workers.llm import LLM

    LLM.load(path).engine(64).prefill(IDS)


def _llama_cpp(path: str) -> None:
    import llama_cpp

    model = llama_cpp.Llama(path, n_ctx=64, n_threads=2, verbose=False)
    model.eval(IDS)


if __name__ == "__main__":
    runs = {"propolis": _propolis, "llama.cpp": _llama_cpp}
    if len(sys.argv) > 1 and sys.argv[1] in runs:
        runs[sys.argv[1]](sys.argv[2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(json.dumps({"first_logits": time.perf_counter() - STARTED, "peak_gb": peak}))
    else:
        main()
