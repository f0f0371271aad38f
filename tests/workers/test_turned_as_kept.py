"""Keys that are turned as they are kept, where a kernel does both: the same as turned before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf

from propolis import ops
from propolis_workers.llm import LLM
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.layers import Layers


CONTEXT = 160
IDS = np.random.default_rng(5).integers(1, 90, 70).tolist()


def loaded(name: str, path, **kept) -> LLM:
    """A family's model, for texts of the length of these."""
    truth = Truth.read(name)
    truth = replace(truth, config={**truth.config, "max_position_embeddings": CONTEXT})
    file = write_gguf(path / f"{name}.gguf", FAMILIES[name], truth, tokenizer=vocabulary())
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
