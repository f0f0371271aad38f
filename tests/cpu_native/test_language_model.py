"""SmolLM2 on the kernels: the reference's tokens, at the numerics that each mode promises."""

from __future__ import annotations

import numpy as np
import pytest

from propolis_workers.llm import LLM
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.default_model import find_model
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.sampling import SamplingParams


pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPT = "What is the capital of France? And of Italy? Answer both."


@pytest.fixture
def logits(runtime):
    """After each token of a prompt, and of one decoded."""

    def of(**settings):
        started = runtime(**settings)
        model = LLM.load(find_model(started.config), runtime=started)
        ids = list(model.tokenizer.encode(PROMPT))
        engine = Engine(model.model, 64)
        rows = engine.logits_of(ids)
        return np.concatenate([rows, engine.decode(int(rows[-1].argmax()))[None]])

    return of


def nmse(a, b):
    """Squares of errors over squares of what is right."""
    return ((a.astype(np.float64) - b) ** 2).sum() / (b.astype(np.float64) ** 2).sum()


def test_logits(logits):
    """NMSE to the reference: 1e-9 where numerics are exact, 1e-6 where activations are rounded."""
    reference = logits(plugins=["cpu_ref"])
    exact = logits(numerics="exact")
    fast = logits()
    assert nmse(exact, reference) <= 1e-9
    assert nmse(fast, reference) <= 1e-6
    assert (exact.argmax(1) == reference.argmax(1)).all()


def test_keys_and_values_are_kept_in_halves(runtime):
    """In f16 unless numerics are exact: the kernels read them as they are."""
    for settings, kept in (({}, "f16"), ({"numerics": "exact"}, "f32")):
        started = runtime(**settings)
        assert LLM.load(find_model(started.config), runtime=started).config.kv_dtype.name == kept


def test_a_decode_step_is_one_plan(runtime):
    """A captured step replays as one plan, from the embedding to the logits."""
    started = runtime()
    model = LLM.load(find_model(started.config), runtime=started)
    engine = Engine(model.model, 64)
    engine.logits_of(list(model.tokenizer.encode(PROMPT)))
    engine.decode(1)
    engine.decode(2)
    assert len(engine._steps[None][0]._joined) == 1


def test_a_batch_decodes_in_one_plan(runtime):
    """A step of several sequences is one plan too, to the likeliest tokens; it copies no halves."""
    started = runtime()
    model = LLM.load(find_model(started.config), runtime=started)
    engine = BatchEngine(model, context=64, most=4)
    ids = list(model.tokenizer.encode("Once upon a time there was"))
    for number in range(3):
        engine.add(number, Request(prompt=ids[number:], params=SamplingParams(), max_tokens=6))
    while engine.busy:
        engine.step()
    _, graph, _ = engine._decodes[4]
    assert len(graph._joined) == 1
    before = started.cpu.table.placement.strided_copies
    graph.replay()
    assert started.cpu.table.placement.strided_copies == before
