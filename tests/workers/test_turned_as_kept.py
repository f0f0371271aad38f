"""Keys that are turned as they are made, or kept, where one kernel does it: the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf

from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.dispatch import Handler
from propolis_workers.llm import LLM
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.layers import Layers


CONTEXT = 160


class Seen(Handler):
    """Which ops are called."""

    def __init__(self, called):
        self.called = called

    def run(self, call, proceed):
        """Note it."""
        self.called.append(call.spec)
        proceed()


IDS = np.random.default_rng(5).integers(1, 90, 70).tolist()


def loaded(name: str, path, stored=GGMLQuantizationType.F32, **kept) -> LLM:
    """A family's model, for texts of the length of these."""
    truth = Truth.read(name)
    truth = replace(truth, config={**truth.config, "max_position_embeddings": CONTEXT})
    written = {"tokenizer": vocabulary(), "stored": stored}
    file = write_gguf(path / f"{name}.gguf", FAMILIES[name], truth, **written)
    return LLM.load(file, **kept)


@pytest.fixture
def turning(monkeypatch):
    """From here on models believe that somebody's kernel turns keys as it keeps them."""
    monkeypatch.setattr(Layers, "has_kernel", lambda _, op, *__: op is ops.rope_kv_append)


def answers(llm: LLM) -> tuple[np.ndarray, list[list[int]]]:
    """Logits of a prompt and of a step after it; and what three requests at once are given."""
    engine = llm.engine(CONTEXT)
    rows = [engine.prefill(IDS[:60]), *(engine.decode(i) for i in IDS[60:])]
    many = BatchEngine(llm, context=CONTEXT, most=3, tokens=CONTEXT * 4, budget=24)
    for key in range(3):
        params = SamplingParams(temperature=0.0)
        many.add(key, Request(prompt=IDS[key : 30 + key * 9], params=params, max_tokens=12))
    finished = {}
    while many.busy:
        for drawn in many.step():
            if drawn.finish is not None:
                finished[drawn.key] = drawn.finish.ids
    return np.stack(rows), [list(finished[key]) for key in range(3)]


@pytest.mark.parametrize("kept", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ["llama", "mistral", "phi3", "gemma2"])
def test_the_same(name, kept, tmp_path, request) -> None:
    """Of neighbours and of halves, all rows and windows, in each dtype: logits and answers."""
    expected = answers(loaded(name, tmp_path, kv_type=kept))
    request.getfixturevalue("turning")
    llm = loaded(name, tmp_path, kv_type=kept)
    layers = [block.attention for block in llm.model.blocks]
    assert all(layer.turns_kept for layer in layers)
    logits, ids = answers(llm)
    np.testing.assert_allclose(logits, expected[0], rtol=1e-4, atol=1e-4)
    assert ids == expected[1]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(("kept", "turned"), [("q8_0", False), ("f16", True)])
def test_not_in_blocks(turning, kept, turned) -> None:
    """Caches in a block format are written as before."""
    blocks = LLM.load(kv_type=kept).model.blocks
    assert {block.attention.turns_kept for block in blocks} == {turned}


@pytest.mark.parametrize("name", ["qwen3", "deepseek"])
def test_not_where_they_are_turned_otherwise(name, tmp_path, turning) -> None:
    """Keys that are normed first, or of which a part is turned, are turned before."""
    llm = loaded(name, tmp_path)
    parts = [block.attention for block in llm.model.blocks]
    assert not any(getattr(part, "turns_kept", False) for part in parts)


# -- by the product that makes them ------------------------------------------------------


@pytest.fixture
def believing(monkeypatch):
    """What makes models believe that there are kernels for these ops alone."""

    def believe(*known):
        monkeypatch.setattr(Layers, "has_kernel", lambda _, op, *__: op in known)

    return believe


@pytest.mark.parametrize(
    ("name", "kept"), [("llama", "f16"), ("mistral", "f32"), ("smollm3", "f32"), ("gemma2", "q8_0")]
)
def test_turned_by_the_product(name, kept, tmp_path, believing) -> None:
    """Into caches of each kind, in windows, and beside layers that turn nothing."""
    stored = GGMLQuantizationType.Q8_0
    believing(ops.add_rms_norm_qmatmul)
    expected = answers(loaded(name, tmp_path, stored, kv_type=kept))
    believing(ops.add_rms_norm_qmatmul, ops.add_rms_norm_qmatmul_rope)
    llm = loaded(name, tmp_path, stored, kv_type=kept)
    layers = [block.attention for block in llm.model.blocks]
    assert any(layer.turns_in_product for layer in layers)
    assert all(layer.turns_in_product == (layer.kind >= 0) for layer in layers)
    same(llm, ops.add_rms_norm_qmatmul_rope, expected)


@pytest.mark.parametrize("name", ["llama", "mistral", "smollm3"])
@pytest.mark.parametrize("kept", ["f32", "f16", "bf16"])
def test_kept_by_the_product(name, kept, tmp_path, believing) -> None:
    """Keys and values go into the cache from there: whole rows, windows, blocks of many answers."""
    stored = GGMLQuantizationType.Q8_0
    known = ops.add_rms_norm_qmatmul, ops.rope_kv_append
    believing(*known)
    expected = answers(loaded(name, tmp_path, stored, kv_type=kept))
    believing(*known, ops.add_rms_norm_qmatmul_rope_kv_append)
    llm = loaded(name, tmp_path, stored, kv_type=kept)
    layers = [block.attention for block in llm.model.blocks]
    assert any(layer.keeps_in_product for layer in layers)
    assert all(layer.keeps_in_product == (layer.kind >= 0) for layer in layers)
    same(llm, ops.add_rms_norm_qmatmul_rope_kv_append, expected)


def same(llm, op, expected) -> None:
    """An op is called, and gives the same logits and answers."""
    called = []
    table = DispatchTable.of(llm.model.device)
    with table.intercept(Seen(called)):
        logits, ids = answers(llm)
    assert op in called
    np.testing.assert_allclose(logits, expected[0], rtol=1e-4, atol=1e-4)
    assert ids == expected[1]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ["llama", "smollm3"])
def test_turned_by_plain_products(name, dtype, tmp_path, believing) -> None:
    """Weights of the dtype of activations are multiplied so, too: as far as the dtype has it."""
    stored = getattr(GGMLQuantizationType, dtype.upper())
    believing()
    expected = answers(loaded(name, tmp_path, stored, dtype=dtype))[0]
    believing(ops.add_rms_norm_linear, ops.add_rms_norm_linear_rope)
    llm = loaded(name, tmp_path, stored, dtype=dtype)
    parts = [block.attention for block in llm.model.blocks]
    assert all(part.joins_norm for part in parts)
    assert any(part.turns_in_product for part in parts)
    called = []
    with DispatchTable.of(llm.model.device).intercept(Seen(called)):
        logits, _ = answers(llm)
    assert {ops.add_rms_norm_linear, ops.add_rms_norm_linear_rope} <= set(called)
    lost = {"f32": 1e-4, "f16": 0.02, "bf16": 0.1}[dtype]
    np.testing.assert_allclose(logits, expected, rtol=lost, atol=lost * np.abs(expected).max())


def test_not_by_products_of_another_dtype(tmp_path, believing) -> None:
    """Weights that are kept in another dtype than activations are multiplied as before."""
    believing(ops.add_rms_norm_linear, ops.add_rms_norm_linear_rope)
    llm = loaded("llama", tmp_path, GGMLQuantizationType.Q8_0, dtype="f16")
    assert not any(block.attention.joins_norm for block in llm.model.blocks)


@pytest.mark.parametrize("name", ["qwen3", "glm4"])
def test_not_by_the_product(name, tmp_path, believing) -> None:
    """Heads that are normed first, and those whose product has a bias, are turned by themselves."""
    believing(ops.add_rms_norm_qmatmul, ops.add_rms_norm_qmatmul_rope)
    llm = loaded(name, tmp_path, GGMLQuantizationType.Q8_0)
    assert not any(block.attention.turns_in_product for block in llm.model.blocks)
