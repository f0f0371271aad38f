"""Activations in f16 or bf16 (`--dtype`), and weights that are not in block formats with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import vendor
from gguf import GGMLQuantizationType
from ml_dtypes import bfloat16
from tiny_families import FAMILIES
from tiny_families import IDS
from tiny_families import PROMPT
from tiny_families import Truth
from tiny_families import network
from tiny_families import vocabulary
from tiny_families import write_folder
from tiny_families import write_gguf

from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.llm import LLM
from propolis_workers.llm import session
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.memory import weight_bytes
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.llm.session import computed_dtype
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from pathlib import Path

HALVES = [dtypes.f16, dtypes.bf16]
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": bfloat16}
# Of errors' mean square beside the truth's, for most tokens: one whose experts are others is off.
MOST = {dtypes.f16: 3e-5, dtypes.bf16: 2e-3}
CHILD = """
import json, sys
from propolis import Runtime
from propolis.dispatch import DispatchTable
from propolis_workers.llm import LLM
runtime = Runtime.start()
device = runtime.device("rocm:0")
told = {}
for asked in sys.argv[1:]:
    path, dtype = asked.split("=")
    llm = LLM.load(path, device=device, dtype=dtype)
    engine = llm.engine(64)
    ids = llm.prompts.text("HELLO, WORLD. HELLO")
    rows = [engine.prefill(ids), *(engine.decode(id) for id in ids[:6])]
    computed = llm.config.dtype.name, llm.config.kv_dtype.name
    told[asked] = [computed, ids, [row.tolist() for row in rows]]
told["placement"] = list(DispatchTable.of(device).placement.lines())
print(json.dumps(told))
"""


def errors(ours, truth) -> np.ndarray:
    """Of each token the mean square of the logits' errors, as a share of the truth's."""
    return ((ours - truth) ** 2).mean(1) / (truth**2).mean()


def blocks_of(path: Path, name: str) -> Path:
    """A family's file in Q8_0."""
    stored = GGMLQuantizationType.Q8_0
    truth = Truth.read(name)
    return write_gguf(path, FAMILIES[name], truth, tokenizer=vocabulary(), stored=stored)


def folder_of(path: Path, held: str, name: str = "llama") -> SafetensorsFolder:
    """A family's checkpoint, its weights in a dtype."""
    truth = Truth.read(name)
    weights = {key: values.astype(NUMPY[held]) for key, values in truth.weights.items()}
    return SafetensorsFolder.open(write_folder(path, truth, weights))


@pytest.fixture
def kernels(monkeypatch):
    """From here on somebody has kernels for all."""
    monkeypatch.setattr(session, "has_kernel", lambda *_: True)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits(name, dtype, tmp_path):
    """Each architecture's are f32, and near the truth, of a prompt and of tokens after it."""
    truth = Truth.read(name).logits
    engine = Engine(network(name, "folder", tmp_path, dtype), len(IDS))
    prompt = engine.logits_of(IDS[:PROMPT])
    decoded = np.array([engine.decode(token) for token in IDS[PROMPT:]])
    assert prompt.dtype == decoded.dtype == np.float32
    for found, expected in ((prompt, truth[:PROMPT]), (decoded, truth[PROMPT:])):
        assert 0 < np.median(errors(found, expected)) <= MOST[dtype]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_all_is_computed_so(dtype, tmp_path, monkeypatch):
    """No product, norm or attention of a step is of f32."""
    model = network("llama", "folder", tmp_path, dtype)
    seen = set()

    def watched(name):
        spec = getattr(ops, name)

        def run(x, *args, **kwargs):
            seen.add((name, x.dtype))
            return spec(x, *args, **kwargs)

        return run

    for name in ("linear", "rms_norm", "add_rms_norm", "rope", "attention", "silu_mul", "add"):
        monkeypatch.setattr(ops, name, watched(name))
    Engine(model, 8).prefill(IDS[:4])
    assert {of for _, of in seen} == {dtype}
    assert {"linear", "add_rms_norm", "rope", "attention"} <= {name for name, _ in seen}


@pytest.mark.parametrize("name", ["llama", "mixtral"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_blocks(dtype, name, tmp_path):
    """Weights in block formats stay so: what they are multiplied with is rounded."""
    path = blocks_of(tmp_path / "m.gguf", name)
    assert LLM.load(path, dtype=dtype).model.output.weight.dtype is dtypes.q8_0
    wide, narrow = (LLM.load(path, dtype=one).engine(64) for one in ("f32", dtype))
    rows = [np.array([e.prefill(IDS[:9]), e.decode(3), e.decode(5)]) for e in (wide, narrow)]
    assert 0 < np.median(errors(rows[1], rows[0])) <= MOST[dtype]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("held", ["f16", "bf16", "f32"])
def test_auto(held, tmp_path):
    """What all matrices of a file are in, where somebody has kernels for it."""
    source = folder_of(tmp_path / "m", held)
    given = source, read_config(source), default_runtime().cpu
    assert computed_dtype("auto", *given).name == held
    assert computed_dtype("f32", *given) is dtypes.f32


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("held", "dtype"), [("f16", "f32"), ("bf16", "bf16")])
def test_auto_beyond_f16(held, dtype, tmp_path):
    """Architectures whose activations f16 has no numbers for are not computed in it unless told."""
    source = folder_of(tmp_path / "m", held, "gemma2")
    given = source, read_config(source), default_runtime().cpu
    assert computed_dtype("auto", *given).name == dtype
    assert computed_dtype("f16", *given) is dtypes.f16


def test_numbers_beyond_f16(tmp_path):
    """An answer that has none says what may be the matter, and what to do."""
    path = write_gguf(
        tmp_path / "m.gguf", FAMILIES["llama"], Truth.read("llama"), tokenizer=vocabulary()
    )
    llm = LLM.load(path, dtype="f16")
    for block in llm.model.blocks:
        block.attention.o.weight.array[:] = 6e4
    with pytest.raises(ModelError, match=r"beyond f16's, which --dtype f32 has, or the ops were"):
        "".join(llm.complete("HELLO", max_tokens=2))


@pytest.mark.parametrize("held", ["f16", "bf16"])
def test_auto_of_experts(held, tmp_path, monkeypatch):
    """A mixture is computed so where somebody has a kernel for its experts too."""
    source = folder_of(tmp_path / "m", held, "mixtral")
    given = source, read_config(source), default_runtime().cpu
    known = {ops.linear, ops.attention, ops.rms_norm}
    monkeypatch.setattr(session, "has_kernel", lambda _, op, *__: op in known)
    assert computed_dtype("auto", *given) is dtypes.f32
    known.add(ops.moe_linear)
    assert computed_dtype("auto", *given).name == held


def test_auto_without_kernels(tmp_path):
    """Nobody but the reference computes in 16 bits: f32."""
    source = folder_of(tmp_path / "m", "bf16")
    assert computed_dtype("auto", source, read_config(source), default_runtime().cpu) is dtypes.f32


@pytest.mark.usefixtures("kernels")
def test_auto_of_several(tmp_path):
    """Matrices of two dtypes, or in a block format, say nothing: f32."""
    truth = Truth.read("llama")
    weights = {name: values.astype(np.float16) for name, values in truth.weights.items()}
    weights["lm_head.weight"] = truth.weights["lm_head.weight"]
    source = SafetensorsFolder.open(write_folder(tmp_path / "m", truth, weights))
    assert computed_dtype("auto", source, read_config(source), default_runtime().cpu) is dtypes.f32


def test_keys_and_values(tmp_path):
    """They are as activations, unless somebody says otherwise."""
    path = write_gguf(
        tmp_path / "m.gguf", FAMILIES["llama"], Truth.read("llama"), tokenizer=vocabulary()
    )
    assert LLM.load(path, dtype="bf16").config.kv_dtype is dtypes.bf16
    assert LLM.load(path, dtype="f16", kv_type="f32").config.kv_dtype is dtypes.f32
    llm = LLM.load(path, dtype="bf16", kv_type="f16")
    assert llm.config.kv_dtype is dtypes.f16
    assert np.isfinite(llm.engine(16).prefill(IDS[:4])).all()


def test_others_are_refused(tmp_path):
    """With what is supported."""
    source = folder_of(tmp_path / "m", "f32")
    with pytest.raises(UsageError, match=r"activations in f64; supported: auto, f32, f16, bf16"):
        computed_dtype("f64", source, read_config(source), default_runtime().cpu)


@pytest.mark.parametrize("dtype", [dtypes.f32, *HALVES], ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
def test_memory(dtype, tied, tmp_path):
    """What weights take is known beforehand, and an embedding is the output as one tensor."""
    truth = Truth.read("llama")
    truth = replace(truth, config=truth.config | {"tie_word_embeddings": tied})
    weights = {key: values.astype(NUMPY[dtype.name]) for key, values in truth.weights.items()}
    if tied:
        weights.pop("lm_head.weight", None)
    source = SafetensorsFolder.open(write_folder(tmp_path / "m", truth, weights))
    device = default_runtime().cpu
    model = build(source, replace(read_config(source), dtype=dtype), device)
    table, output = model.embedding.table, model.output.weight
    assert (table is output) == tied
    stored = sum(values.nbytes for values in weights.values())
    names = "model.embed_tokens.weight", "lm_head.weight"
    assert weight_bytes(source, *names, device, dtype) == stored


@pytest.mark.slow
def test_on_a_gpu(hipsim, tmp_path):
    """Near what they are in f32, of floats and of blocks; nothing leaves the GPU."""
    plain = write_gguf(
        tmp_path / "plain.gguf", FAMILIES["llama"], Truth.read("llama"), tokenizer=vocabulary()
    )
    files = plain, blocks_of(tmp_path / "blocks.gguf", "llama")
    asked = [[f"{file}={dtype}" for dtype in ("f32", "f16", "bf16")] for file in files]
    told = vendor.told(hipsim, tmp_path, CHILD, *asked[0], *asked[1])
    for every in asked:
        _, ids, wide = told[every[0]]
        for one, dtype in zip(every[1:], HALVES, strict=True):
            computed, same, rows = told[one]
            assert (computed, same) == ([dtype.name, dtype.name], ids)
            assert 0 < np.median(errors(np.array(rows), np.array(wide))) <= MOST[dtype]
    assert not [line for line in told["placement"] if "on the cpu" in line or "decompos" in line]
