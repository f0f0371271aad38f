"""
Formats of weights on the CPU: SmolLM2-135M in several, 1B and a mixture in Q4_K, beside llama.cpp.

llama.cpp takes part with flash attention and without, and its better figure counts.  Each round
runs every contender once on each file, in a process of its own; figures are medians.

    python benches/llm_formats.py [--rounds 3] [--only q8_0,1b] [--prompt 512]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import child
from _common import medians
from _random_model import write_random_llama
from llm_cpu import DECODED
from llm_cpu import PROMPT
from llm_cpu import figures
from llm_cpu import prompt


FORMATS = ("q4_1", "q4_0", "q8_0", "q4_k_m", "f16", "bf16")
PLAIN = {"f16": "F16", "bf16": "BF16"}
# Of llama.cpp's: decoding and reading, at least; memory, at most.
TARGETS = {"small": (1.2, 2.0, 1.2), "large": (1.0, 1.5, 1.2)}
LARGE = ("1b", "a3b")  # random weights of a shape
SPARE = 512  # positions beyond the prompt


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join((*FORMATS, *LARGE)))
    parser.add_argument(
        "--prompt", type=int, default=PROMPT, help="tokens; decoding is behind them"
    )
    asked = parser.parse_args()
    if not importlib.util.find_spec("llama_cpp"):
        print("llama_cpp is not installed: no peer (its module may come by PYTHONPATH)")
        return
    contenders = (("propolis",), ("llama.cpp", "0"), ("llama.cpp", "1"))
    count = str(asked.prompt)
    with tempfile.TemporaryDirectory() as folder:
        print("| model | decode, ours / llama.cpp's, tokens/s | ratio | prefill | ratio |", end="")
        print(" peak, GB | ratio |\n|---|---|---|---|---|---|---|")
        for name in asked.only.split(","):
            path = _written(Path(folder), name)
            path.read_bytes()  # into the page cache
            rounds: list[list[dict[str, float]]] = [[] for _ in contenders]
            for _ in range(asked.rounds):
                for kept, contender in zip(rounds, contenders, strict=True):
                    kept.append(child(__file__, "--contender", *contender, str(path), count))
            ours, *theirs = map(medians, rounds)
            print(_row(name, ours, theirs), flush=True)


def _row(name: str, ours: dict[str, float], theirs: list[dict[str, float]]) -> str:
    decode, prefill, peak = TARGETS["large" if name in LARGE else "small"]
    cells = [name]
    for figure, target, best in (
        ("decode", decode, max),
        ("prefill", prefill, max),
        ("peak_gb", peak, min),
    ):
        other = best(one[figure] for one in theirs)
        ratio = ours[figure] / other
        met = ratio >= target if best is max else ratio <= target
        digits = 2 if best is min else 0
        cells.append(f"{ours[figure]:.{digits}f} / {other:.{digits}f}")
        cells.append(f"{ratio:.2f}{'' if met else f' (target {target})'}")
    return f"| {' | '.join(cells)} |"


def _written(folder: Path, name: str) -> Path:
    """A file of that format, or shape."""
    if name in LARGE:
        return write_random_llama(folder / f"{name}.gguf", name)
    plain = folder / "plain.gguf"
    if not plain.exists():
        _write_plain(plain)
    if name in PLAIN:
        _write_plain(plain := folder / f"{name}.gguf", PLAIN[name])
        return plain
    path = folder / f"{name}.gguf"
    quantize = "from propolis.cli import main; main()"
    command = (sys.executable, "-c", quantize, "models", "quantize")
    subprocess.run(
        [*command, str(plain), str(path), "--type", name], check=True, capture_output=True
    )
    return path


def _write_plain(path: Path, halves: str = "F16") -> None:
    """SmolLM2 in 16 bits, of what its file in Q4_1 has left: speed does not depend on it."""
    import gguf

    from propolis import Config
    from propolis_workers.llm.default_model import find_model

    reader = gguf.GGUFReader(find_model(Config.load()))
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in (
            "general.architecture",
            "general.file_type",
        ):
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        stored = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else halves]
        writer.add_tensor(tensor.name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _propolis(path: str, count: str) -> dict[str, float]:
    from propolis import Config
    from propolis import Runtime
    from propolis_workers.llm import LLM

    ids = prompt(int(count))
    engine = LLM.load(path, runtime=Runtime.start(Config.load())).engine(len(ids) + SPARE)
    engine.prefill(ids)  # the first pass touches the memory that later ones reuse
    engine.truncate(0)
    start = time.perf_counter()
    engine.prefill(ids)
    prefill = time.perf_counter() - start
    engine.decode(1)
    start = time.perf_counter()
    for token in prompt(DECODED):
        engine.decode(token)
    return figures(prefill, time.perf_counter() - start, len(ids))


def _llama_cpp(flash: str, path: str, count: str) -> dict[str, float]:
    from llama_cpp import Llama

    ids = prompt(int(count))
    cores = len(os.sched_getaffinity(0))
    threads = {"n_threads": cores, "n_threads_batch": cores}
    model = Llama(
        path,
        n_ctx=len(ids) + SPARE,
        n_batch=PROMPT,
        verbose=False,
        flash_attn=bool(int(flash)),
        **threads,
    )
    model.eval(ids)
    model.reset()
    start = time.perf_counter()
    model.eval(ids)
    prefill = time.perf_counter() - start
    model.eval([1])
    start = time.perf_counter()
    for token in prompt(DECODED):
        model.eval([token])
    return figures(prefill, time.perf_counter() - start, len(ids))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        name, *arguments = sys.argv[2:]
        print(json.dumps({"propolis": _propolis, "llama.cpp": _llama_cpp}[name](*arguments)))
    else:
        main()
