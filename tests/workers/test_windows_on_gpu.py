"""Layers with windows on a simulated GPU: rings and blocks of their own, as on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import vendor
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf


NAMES = ["mistral", "gemma3", "gpt_oss"]

CHILD = """
import json, sys
from propolis import Runtime
from propolis.dispatch import DispatchTable
from propolis.runtime import set_default_runtime
from propolis_workers.llm import LLM, SamplingParams, chunks, engine, kv_cache, memory
from propolis_workers.llm.batch import engine as batch

for module in (chunks, engine, kv_cache, memory):
    module.CHUNK = 8
for module in (kv_cache, memory):
    module.PAGE = batch.BLOCK = 4
PROMPTS = ["HELLO AND GOODBYE, AND HELLO", "HELLO AND THEN"]
runtime = Runtime.start()
set_default_runtime(runtime)
told = {}
for name in ("cpu", "rocm:0"):
    device = runtime.device(name)
    for path in sys.argv[1:]:
        llm = LLM.load(path, device=device)
        ours = told.setdefault(path, {}).setdefault(name, [])
        for prompt in PROMPTS:
            generation = llm.complete(prompt, max_tokens=24)
            "".join(generation)
            assert generation._engine._cache._rings
            ours.append(generation.finish.ids)
        many = batch.BatchEngine(llm, context=64, most=4, budget=8)
        assert many.blocks.windows is not None
        for key, prompt in enumerate(PROMPTS):
            ids = llm.tokenizer.encode(prompt)
            many.add(key, batch.Request(prompt=ids, params=SamplingParams(), max_tokens=24))
        done = {}
        while many.busy:
            for drawn in many.step():
                assert drawn.error is None, drawn.error
                if drawn.finish is not None:
                    done[drawn.key] = drawn.finish.ids
        ours += [done[key] for key in range(len(PROMPTS))]
told["placement"] = list(DispatchTable.of(runtime.device("rocm:0")).placement.lines())
print(json.dumps(told))
"""


@pytest.mark.slow
def test_the_same_tokens(hipsim, tmp_path) -> None:
    """Tokens are the CPU's, alone and beside another, and no op leaves the GPU."""
    files = []
    for name in NAMES:
        truth = Truth.read(name)
        truth = replace(truth, config={**truth.config, "max_position_embeddings": 96})
        path = tmp_path / f"{name}.gguf"
        files.append(write_gguf(path, FAMILIES[name], truth, tokenizer=vocabulary()))
    told = vendor.told(hipsim, tmp_path, CHILD, *files)
    for path in map(str, files):
        alone = told[path]["cpu"][:2]
        assert told[path]["cpu"] == told[path]["rocm:0"] == [*alone, *alone]
        assert len(set(map(tuple, alone))) == len(alone)
    assert not [line for line in told["placement"] if "on the cpu" in line]
