"""
SmolLM2-135M on the CPU: ours, the reference alone, llama.cpp and transformers in f32.

Peers take part where they are installed (llama-cpp-python's module may come by PYTHONPATH).

Each round runs every contender once, in a process of its own; figures are medians.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from _common import child
from _common import medians


ROUNDS = 3
PROMPT = 512
DECODED = 64


def main() -> None:
    """Run the rounds and print the table."""
    contenders = ["propolis", "cpu_ref"]
    for module, name in (("llama_cpp", "llama.cpp"), ("transformers", "transformers")):
        if importlib.util.find_spec(module):
            contenders.append(name)
        else:
            print(f"{module} is not installed: {name} takes no part")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name in contenders:
            rounds[name].append(child(__file__, name))
    results = {name: medians(figures) for name, figures in rounds.items()}
    ours = results["propolis"]
    budgets = {
        "prefill": ">= 2 of llama.cpp's",
        "decode": ">= 1.2 of llama.cpp's",
        "peak_gb": "<= 1.2 of llama.cpp's",
        "first_token": "<= 1.0",
    }
    units = {"prefill": "tokens/s", "decode": "tokens/s", "peak_gb": "GB", "first_token": "s"}
    for figure, unit in units.items():
        line = f"{figure:12} {ours[figure]:8.2f} {unit:9} (target {budgets[figure]})"
        for name, theirs in results.items():
            if name != "propolis" and figure in theirs:
                line += f"   {name} {theirs[figure]:.2f}, ratio {ours[figure] / theirs[figure]:.2f}"
        print(line)
    for busy in (0, 1, 2):
        rates: dict[str, list[dict[str, float]]] = {"0": [], "1": []}
        for _ in range(ROUNDS):
            for threads, figures in rates.items():
                figures.append(child(__file__, "beside", str(busy), threads))
        default, one = (medians(figures)["decode"] for figures in rates.values())
        print(
            f"decode beside {busy} busy processes: {default:.2f} tokens/s, with one thread "
            f"{one:.2f}, ratio {default / one:.2f} (target >= 1)"
        )


def _beside(busy: str, threads: str) -> dict[str, float]:
    """Tokens a second of an answer of a thousand while other processes keep cores busy."""
    from propolis import Config
    from propolis import Runtime
    from propolis_workers.llm import LLM

    tokens = prompt() + prompt()
    engine = LLM.load(runtime=Runtime.start(Config(threads=int(threads)))).engine(len(tokens) + 16)
    engine.prefill(tokens[:8])
    engine.decode(1)
    others = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(int(busy))]
    try:
        time.sleep(0.5)  # until they run
        start = time.perf_counter()
        for token in tokens:
            engine.decode(token)
        return {"decode": len(tokens) / (time.perf_counter() - start)}
    finally:
        for other in others:
            other.kill()
            other.wait()


def _llama_cpp() -> dict[str, float]:
    from llama_cpp import Llama

    from propolis import Config
    from propolis_workers.llm.default_model import find_model

    path = str(find_model(Config.load()))
    cores = len(os.sched_getaffinity(0))
    model = Llama(
        path, n_ctx=1024, n_batch=PROMPT, n_threads=cores, n_threads_batch=cores, verbose=False
    )
    ids = prompt()
    model.eval(ids)
    model.reset()
    start = time.perf_counter()
    model.eval(ids)
    prefill = time.perf_counter() - start
    model.eval([1])
    start = time.perf_counter()
    for token in ids[:DECODED]:
        model.eval([token])
    return figures(prefill, time.perf_counter() - start)


def _propolis(*disabled: str) -> dict[str, float]:
    from propolis import Config
    from propolis import Runtime
    from propolis_workers.llm import LLM

    os.environ["PROPOLIS_DISABLE_PLUGINS"] = ",".join(disabled)
    engine = LLM.load(runtime=Runtime.start(Config.load())).engine(1024)
    ids = prompt()
    engine.prefill(ids)  # the first pass touches the memory that later ones reuse
    engine.truncate(0)
    start = time.perf_counter()
    engine.prefill(ids)
    prefill = time.perf_counter() - start
    engine.decode(1)
    start = time.perf_counter()
    for token in ids[:DECODED]:
        engine.decode(token)
    decode = time.perf_counter() - start
    # From the start of a process to its first token, imports and loading included.
    command = "from propolis.cli import main; main(['llm', 'generate', '-n', '1', 'Hello'])"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", command], check=True, capture_output=True)
    return {**figures(prefill, decode), "first_token": time.perf_counter() - start}


def _transformers() -> dict[str, float]:
    import torch
    from transformers import LlamaConfig
    from transformers import LlamaForCausalLM

    from propolis_workers.llm import LLM

    config = LLM.load().config
    # Random weights of the same shapes: time does not depend on the values.
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.ffn_width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.context_length,
            tie_word_embeddings=True,
        ),
    ).eval()
    ids = torch.tensor([prompt()])
    with torch.inference_mode():
        model(ids, logits_to_keep=1)
        start = time.perf_counter()
        state = model(ids, use_cache=True, logits_to_keep=1)
        prefill = time.perf_counter() - start
        cache = state.past_key_values
        model(ids[:, :1], past_key_values=cache)
        start = time.perf_counter()
        for index in range(DECODED):
            model(ids[:, index : index + 1], past_key_values=cache)
        decode = time.perf_counter() - start
    return figures(prefill, decode)


def prompt(count: int = PROMPT) -> list[int]:
    """The tokens that are read."""
    return [int(i) for i in np.random.default_rng(0).integers(20, 40_000, count)]


def figures(prefill: float, decode: float, count: int = PROMPT) -> dict[str, float]:
    """Tokens a second of what took so many seconds, and the process's memory at most."""
    return {
        "prefill": count / prefill,
        "decode": DECODED / decode,
        "peak_gb": peak_gb(),
    }


def peak_gb() -> float:
    """The most memory that was resident; getrusage would tell the parent's, if that had more."""
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024 / 1e9


if __name__ == "__main__":
    if len(sys.argv) > 1:
        contender, *arguments = sys.argv[1:]
        functions = {
            "propolis": _propolis,
            "cpu_ref": partial(_propolis, "cpu_native"),
            "llama.cpp": _llama_cpp,
            "transformers": _transformers,
            "beside": _beside,
        }
        print(json.dumps(functions[contender](*arguments)))
    else:
        main()
