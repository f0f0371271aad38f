"""
Many answers at once on a GPU, of models of real shapes with random weights, Q4_K if not F16.

Each stream has a prompt of its own and decodes so many tokens; all begin at once, as
``llama-batched-bench`` has it, which is the peer where its program is given: it reads the same
file, before ours and after.  One sequence is timed on the engine of one conversation too.

    python benches/gpu_streams.py [--shapes 1b,8b] [--streams 1,8,32,128] [--device rocm:0]
        [--kv-type f16] [--stored F16 [--dtype f16]] [--temperature 0.8 --top-k 40]
        [--peer llama-batched-bench] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _random_model import SHAPES
from _random_model import write_random_llama

from propolis import default_runtime
from propolis_workers.llm import LLM
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.sampling import SamplingParams


# Steps of prompts are captured as they come for the fourth time.
ROUNDS = 5


def ours(
    llm: LLM, streams: int, prompt: int, decoded: int, budget: int | None, params: SamplingParams
) -> dict[str, float]:
    """
    Let streams run to their ends, to compile and capture, and at last by the clock.

    Returns:
        Tokens a second: ``prefill``, until the last stream has its first token; ``decode``, of the
        steps after it; ``all``, prompts and answers over the whole time.
    """
    context = prompt + decoded + 1
    engine = BatchEngine(
        llm, context=context, most=streams, tokens=streams * (context + 16), budget=budget
    )
    rng = np.random.default_rng(streams)
    figures: dict[str, float] = {}
    for _ in range(ROUNDS):
        for key in range(streams):
            ids = rng.integers(256, llm.model.config.vocab_size - 2, prompt).tolist()
            engine.add(
                key, Request(prompt=ids, params=replace(params, seed=key), max_tokens=decoded)
            )
        begun: set[object] = set()
        tokens = since = 0
        start = time.perf_counter()
        first = start
        while engine.busy:
            for drawn in engine.step():
                tokens += 1
                begun.add(drawn.key)
            if len(begun) == streams and not since:
                first, since = time.perf_counter(), tokens
        end = time.perf_counter()
        figures = {
            "prefill": streams * prompt / (first - start),
            "decode": (tokens - since) / (end - first),
            "all": (streams * prompt + tokens) / (end - start),
        }
    return figures


def alone(llm: LLM, prompt: int, decoded: int) -> dict[str, float]:
    """Tokens a second of the engine of one conversation."""
    engine = llm.engine(prompt + decoded + 1)
    ids = np.random.default_rng(0).integers(256, 1000, prompt).tolist()
    figures: dict[str, float] = {}
    for _ in range(ROUNDS):
        engine.truncate(0)
        start = time.perf_counter()
        token, known = int(engine.prefill(ids).argmax()), llm.tokenizer.vocab_size
        first = time.perf_counter()
        for _ in range(decoded - 1):
            token, _ = engine.decode_likeliest(token, known)
        end = time.perf_counter()
        figures = {
            "prefill": prompt / (first - start),
            "decode": (decoded - 1) / (end - first),
            "all": (prompt + decoded) / (end - start),
        }
    return figures


def theirs(program: str, model: Path, streams: list[int], prompt: int, decoded: int) -> Any:
    """What llama.cpp's bench says, by streams; of the first twice, as a process' first is slow."""
    every = [streams[0], *streams]
    command = [program, "-m", str(model), "-ngl", "99", "-fa", "on", "--output-format", "jsonl"]
    command += ["-c", str(max(streams) * (prompt + decoded + 16)), "-b", "2048", "-ub", "512"]
    command += ["-npp", str(prompt), "-ntg", str(decoded), "-npl", ",".join(map(str, every))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{program} ended with {done.returncode}: {done.stderr[-2000:]}"
        raise SystemExit(msg)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {
        row["pl"]: {"prefill": row["speed_pp"], "decode": row["speed_tg"], "all": row["speed"]}
        for row in rows
    }


def measure(shape: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a model."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_llama(Path(folder) / "random.gguf", shape, asked.stored)
        peers = []
        if asked.peer:
            peers.append(theirs(asked.peer, path, asked.streams, asked.prompt, asked.decoded))
        device = default_runtime().device(asked.device)
        llm = LLM.load(path, device=device, kv_type=asked.kv_type, dtype=asked.dtype)
        for streams in asked.streams:
            row: dict[str, Any] = {"model": shape, "streams": streams}
            params = SamplingParams(
                temperature=asked.temperature, top_k=asked.top_k, top_p=asked.top_p
            )
            row["ours"] = ours(llm, streams, asked.prompt, asked.decoded, asked.budget, params)
            rows.append(row)
            print(json.dumps(row), flush=True)
            gc.collect()
        rows[0]["alone"] = alone(llm, asked.prompt, asked.decoded)
        print("\n".join(llm.model.device.table.placement.lines()))
        del llm
        gc.collect()
        if asked.peer:
            peers.append(theirs(asked.peer, path, asked.streams, asked.prompt, asked.decoded))
    for row in rows:
        for name in ("prefill", "decode", "all") if peers else ():
            values = [peer[row["streams"]][name] for peer in peers]
            row.setdefault("peer", {})[name] = sum(values) / len(values)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table: ours, the peer's, and ours as a share of it."""
    names = ("prefill", "decode", "all")
    lines = [
        "| model | streams | prefill | decode | prompts and answers |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        for engine in ("ours", "alone"):
            if engine not in row:
                continue
            cells = [f"{row[engine][name]:.0f}" for name in names]
            if "peer" in row:
                against = [row["peer"][name] for name in names]
                mine = [row[engine][name] for name in names]
                cells = [
                    f"{m:.0f} / {p:.0f} = {m / p:.2f}" for m, p in zip(mine, against, strict=True)
                ]
            streams = row["streams"] if engine == "ours" else "one conversation"
            lines.append(f"| {row['model']} | {streams} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="1b,8b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--streams", default="1,8,32,128")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decoded", type=int, default=128)
    parser.add_argument("--budget", type=int, help="tokens of a step of ours, if not its own pace")
    parser.add_argument("--device", default="rocm:0")
    parser.add_argument("--kv-type", default="auto", help="what keys and values are kept in")
    parser.add_argument("--stored", default="Q4_K", choices=("Q4_K", "F16", "BF16"))
    parser.add_argument("--dtype", default="auto", help="what activations are in")
    parser.add_argument("--temperature", type=float, default=0.0, help="the peer draws nothing")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--peer", metavar="PROGRAM")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    asked.streams = [int(number) for number in asked.streams.split(",")]
    rows = [row for shape in asked.shapes.split(",") for row in measure(shape, asked)]
    print(table(rows))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
