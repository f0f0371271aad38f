"""Keys and values in f16 or bf16, which queries in f32 are multiplied with as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import vendor
from tiny_families import FAMILIES
from tiny_families import IDS
from tiny_families import PROMPT
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf

from propolis import Config
from propolis import Runtime
from propolis import dtypes
from propolis import ops
from propolis_workers.llm import LLM
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.layers import Layers
from propolis_workers.llm.network import attending


if TYPE_CHECKING:
    from pathlib import Path


SOME = ["llama", "gemma2", "gpt_oss"]  # whole rows, windows and caps, sinks
MIXED = {"qattention", "qattention_lse"}
CHILD = """
import json, sys
from propolis import Runtime
from propolis.dispatch import DispatchTable
from propolis_workers.llm import LLM
runtime = Runtime.start()
device = runtime.device("rocm:0")
told = {}
for path in sys.argv[1:]:
    llm = LLM.load(path, device=device)
    assert llm.config.kv_dtype.name == "f16", llm.config.kv_dtype
    engine = llm.engine(64)
    ids = llm.prompts.text("HELLO, WORLD. HELLO")
    rows = [engine.prefill(ids), *(engine.decode(id) for id in ids[:6])]
    told[path] = [ids, [row.tolist() for row in rows]]
told["ops"] = sorted(op for op in DispatchTable.of(device).placement.as_dict()["ops"])
told["placement"] = list(DispatchTable.of(device).placement.lines())
print(json.dumps(told))
"""


def nmse(ours, truth) -> float:
    """The error's mean square, as a share of the truth's."""
    return float(((ours - truth) ** 2).mean() / (truth**2).mean())


def written(folder: Path, name: str) -> Path:
    """A family's model."""
    file = folder / f"{name}.gguf"
    return write_gguf(file, FAMILIES[name], Truth.read(name), tokenizer=vocabulary())


@pytest.fixture
def kernels(monkeypatch):
    """From here on models believe that somebody has a kernel for such keys."""
    monkeypatch.setattr(Layers, "has_kernel", lambda _, op, *__: op is ops.qattention)


@pytest.fixture
def attended(monkeypatch):
    """The ops of attention that are called, with the dtype of queries and how many there are."""
    seen = []

    class Seen:
        def __getattr__(self, name):
            spec = getattr(ops, name)

            def run(q, *args, **kwargs):
                if "attention" in name:
                    seen.append((name, q.dtype.name, q.shape[1]))
                return spec(q, *args, **kwargs)

            return run

    monkeypatch.setattr(attending, "ops", Seen())
    return seen


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "cpu"])
@pytest.mark.parametrize("kept", [dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("name", SOME)
def test_logits(name, kept, gpu, tmp_path, attended, monkeypatch):
    """A GPU rounds a prompt's queries, not one token's; logits are off by what keys lose."""
    if gpu:
        monkeypatch.setattr(Layers, "rounds_queries", True)
    llm = LLM.load(written(tmp_path, name), kv_type=kept)
    engine = Engine(llm.model, len(IDS))
    engine.prefill(IDS[:PROMPT])
    prompt = ("a", kept.name, PROMPT) if gpu else ("q", "f32", PROMPT)
    assert {(one[0][0], *one[1:]) for one in attended} == {prompt}
    attended.clear()
    logits = np.array([engine.decode(token) for token in IDS[PROMPT:]])
    assert {(one[0][0], *one[1:]) for one in attended} == {("q", "f32", 1)}
    truth = Truth.read(name).logits[PROMPT:]
    errors = ((logits - truth) ** 2).mean(1) / (truth**2).mean()
    assert np.median(errors) <= (1e-5 if kept is dtypes.f16 else 1e-3)


@pytest.mark.usefixtures("kernels")
def test_exact_numerics(tmp_path, attended, monkeypatch):
    """Where nothing may be rounded further, no queries are."""
    monkeypatch.setattr(Layers, "exact", True)
    llm = LLM.load(written(tmp_path, "llama"), kv_type="f16")
    Engine(llm.model, len(IDS)).prefill(IDS[:PROMPT])
    assert set(attended) == {("qattention", "f32", PROMPT)}


def test_the_cpu_keeps_f32(tiny_gguf):
    """Nobody has such a kernel there: f32 unless told."""
    assert LLM.load(tiny_gguf).config.kv_dtype is dtypes.f32
    assert LLM.load(tiny_gguf, kv_type="f16").config.kv_dtype is dtypes.f16


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_on_a_gpu(hipsim, tmp_path, numerics):
    """
    F16 unless numerics are exact; logits are near the CPU's in f32, and no op leaves the GPU.

    No queries are converted for one token.
    """
    files = {name: written(tmp_path, name) for name in SOME}
    child = CHILD if numerics == "fast" else CHILD.replace('== "f16"', '== "f32"')
    told = vendor.told(hipsim, tmp_path, child, *files.values(), PROPOLIS_NUMERICS=numerics)
    device = Runtime.start(Config(plugins=["cpu_ref"])).cpu
    for path in files.values():
        ids, rows = told[str(path)]
        engine = LLM.load(path, device=device).engine(64)
        truth = [engine.prefill(ids), *(engine.decode(id_) for id_ in ids[:6])]
        assert nmse(np.array(rows), np.array(truth)) <= (1e-5 if numerics == "fast" else 1e-9)
    assert (set(told["ops"]) >= MIXED) == (numerics == "fast")
    assert not [line for line in told["placement"] if "on the cpu" in line or "decompos" in line]
