"""Steps of long prompts, which are captured when they come again."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from propolis.errors import OutOfMemoryError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm import engine as engines
from propolis_workers.llm.batch import engine as batches
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.chunks import Pieces


PROMPT = list(range(5, 64))  # seven whole pieces of 8, and 3 tokens


@pytest.fixture
def short(monkeypatch):
    """Chunks of 8 tokens."""
    monkeypatch.setattr(engines, "pieces_of", lambda *_: Pieces((8,), captured=True))


@pytest.fixture
def full(monkeypatch):
    """Capturing takes more memory than there is, once the step has run."""
    tries = []

    @contextmanager
    def capture(device):
        tries.append(device)
        yield
        raise OutOfMemoryError("no room")

    for module in (engines, batches):
        monkeypatch.setattr(module, "capture", capture)
    return tries


def answer(engine: BatchEngine, prompt: list[int], tokens: int = 6) -> list[int]:
    """The greedy answer of an engine that has nothing else to do."""
    engine.add("one", Request(prompt=prompt, params=SamplingParams(), max_tokens=tokens))
    while engine.busy:
        for drawn in engine.step():
            if drawn.finish is not None:
                return drawn.finish.ids
    raise AssertionError("it has no end")


@pytest.mark.usefixtures("short")
def test_chunks_of_a_conversation(llm, queue):
    """The fourth whole chunk is captured, those after it and of later prompts are replayed."""
    plain = llm.engine(96)
    plain._pieces = Pieces((8,), captured=False)
    expected = plain.prefill(PROMPT)
    engine = llm.engine(96)
    assert np.array_equal(engine.prefill(PROMPT), expected)
    assert len(queue) == 3
    engine.truncate(8)  # and from anywhere
    assert np.array_equal(engine.prefill(PROMPT[8:]), expected)
    assert len(queue) == 9
    assert len(set(map(id, queue))) == 1
    other = PROMPT[::-1]
    plain.truncate(0)
    engine.truncate(0)
    assert np.array_equal(engine.prefill(other[:16]), plain.prefill(other[:16]))
    ids = [int(engine.decode(7).argmax()) for _ in range(3)]
    assert ids == [int(plain.decode(7).argmax()) for _ in range(3)]
    assert np.array_equal(engine.logits_of(PROMPT[:8]), plain.logits_of(PROMPT[:8]))


@pytest.mark.usefixtures("short", "queue")
def test_no_memory_to_capture_a_chunk(llm, full):
    """The prompt is computed all the same."""
    plain = llm.engine(96)
    plain._pieces = Pieces((8,), captured=False)
    engine = llm.engine(96)
    assert np.array_equal(engine.prefill(PROMPT), plain.prefill(PROMPT))
    assert engine._chunks == {}
    assert len(full) == 1


def test_a_long_prompt_of_an_engine_of_many(llm, queue):
    """From its fifth part on, parts of a prompt are replays; beside answers as well."""
    plain = BatchEngine(llm, context=96, most=2, budget=8)
    plain._captured = set()
    expected = answer(plain, PROMPT)
    engine = BatchEngine(llm, context=96, most=2, budget=8)
    assert answer(engine, PROMPT) == expected
    assert queue.count(engine._prompts[8].graph) == 3
    assert plain._prompts == {}
    # Another answer takes a row of each step: they are of another shape, and alike.
    beside = Request(prompt=PROMPT[:3], params=SamplingParams(), max_tokens=30)
    engine.add("beside", beside)
    engine.step()
    assert answer(engine, [9, *PROMPT]) == answer(plain, [9, *PROMPT])
    assert engine._prompts[8].key == (2, 8, 1)
    assert queue.count(engine._prompts[8].graph) >= 3


@pytest.mark.usefixtures("queue")
def test_no_memory_to_capture_a_part_of_a_prompt(llm, monkeypatch, full):
    """The answer is the same."""
    plain = BatchEngine(llm, context=96, most=2, budget=8)
    plain._captured = set()
    engine = BatchEngine(llm, context=96, most=2, budget=8)
    monkeypatch.setattr(engine, "_decoded", lambda parts: engine._mixed(parts, len(parts), [0]))
    monkeypatch.setattr(plain, "_decoded", lambda parts: plain._mixed(parts, len(parts), [0]))
    assert answer(engine, PROMPT) == answer(plain, PROMPT)
    assert engine._prompts == plain._prompts == {}
    assert len(full) == 1
