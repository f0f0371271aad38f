"""Steps of long prompts, which are captured when they come again."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from propolis.dispatch.capture import Graph
from propolis.errors import OutOfMemoryError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm import chunks
from propolis_workers.llm import engine as engines
from propolis_workers.llm.batch import steps as batches
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.batch.steps import rung
from propolis_workers.llm.chunks import Pieces


PROMPT = list(range(5, 64))  # seven whole pieces of 8, and 3 tokens


@pytest.fixture
def short(monkeypatch):
    """Chunks of 8 tokens."""
    monkeypatch.setattr(engines, "pieces_of", lambda *_: Pieces((8,), captured=True))


def no_room(monkeypatch):
    """From now on capturing takes more memory than there is, once the step has run; its tries."""
    tries = []

    @contextmanager
    def capture(device):
        tries.append(device)
        yield
        raise OutOfMemoryError("no room")

    for module in (chunks, batches):
        monkeypatch.setattr(module, "capture", capture)
    return tries


@pytest.fixture
def full(monkeypatch):
    """Capturing takes more memory than there is."""
    return no_room(monkeypatch)


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
    plain._chunks.pieces = Pieces((8,), captured=False)
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
    plain._chunks.pieces = Pieces((8,), captured=False)
    engine = llm.engine(96)
    assert np.array_equal(engine.prefill(PROMPT), plain.prefill(PROMPT))
    assert engine._chunks.captured == {}
    assert len(full) == 1


def uncaptured(llm, **sizes) -> BatchEngine:
    """One that computes each step with prompts anew."""
    engine = BatchEngine(llm, **sizes)
    engine.steps._sizes = set()
    engine.steps.shorts = False
    return engine


def test_a_long_prompt_of_an_engine_of_many(llm, queue):
    """From its fifth part on, parts of a prompt are replays; beside answers as well."""
    plain = uncaptured(llm, context=96, most=2, budget=8)
    expected = answer(plain, PROMPT)
    engine = BatchEngine(llm, context=96, most=2, budget=8)
    assert answer(engine, PROMPT) == expected
    steps = engine.steps
    assert queue.count(steps.pieces[8][1].graph) == 3
    assert plain.steps.pieces == {}
    # Another answer takes a row of each step: they are of another shape, and alike.
    beside = Request(prompt=PROMPT[:3], params=SamplingParams(), max_tokens=30)
    engine.add("beside", beside)
    engine.step()
    assert answer(engine, [9, *PROMPT]) == answer(plain, [9, *PROMPT])
    assert steps.pieces[8][0] == (2, 8, 1)
    assert queue.count(steps.pieces[8][1].graph) >= 3


@pytest.mark.usefixtures("queue")
def test_no_memory_to_capture_a_part_of_a_prompt(llm, monkeypatch, full):
    """The answer is the same."""
    plain = uncaptured(llm, context=96, most=2, budget=8)
    engine = BatchEngine(llm, context=96, most=2, budget=8)
    for steps in (engine.steps, plain.steps):
        replaced = partial(lambda own, parts: own.mixed(parts, len(parts), [0]), steps)
        monkeypatch.setattr(steps, "decode", replaced)
    engine.steps.shorts = False
    assert answer(engine, PROMPT) == answer(plain, PROMPT)
    assert engine.steps.pieces == plain.steps.pieces == {}
    assert len(full) == 1


@pytest.fixture
def replays(monkeypatch):
    """The graphs that are replayed, each time that they are."""
    found = []
    replay = Graph.replay
    monkeypatch.setattr(Graph, "replay", lambda graph: (found.append(graph), replay(graph))[1])
    return found


def drawn_beside(engine: BatchEngine, prompts: list[list[int]]) -> dict[int, list[int]]:
    """Answers to prompts of which one comes at each step, beside an answer that goes on."""
    found = {}
    engine.add(-1, Request(prompt=[3, 4], params=SamplingParams(), max_tokens=60))
    for number, prompt in enumerate(prompts):
        engine.add(number, Request(prompt=prompt, params=SamplingParams(), max_tokens=2))
        found.update((d.key, d.finish.ids) for d in engine.step() if d.finish)
    while engine.busy:
        found.update((d.key, d.finish.ids) for d in engine.step() if d.finish)
    return found


def test_short_prompts_are_replays(llm, replays):
    """
    From the fourth of about as many tokens on, with rows of nobody's where they are fewer.

    The answers are those of steps that are computed anew, and of prompts computed alone.
    """
    prompts = [[5 + n, *range(20 + n, 23 + n + n % 3)] for n in range(14)]
    engine, plain = (make(llm, context=96, most=8) for make in (BatchEngine, uncaptured))
    expected = drawn_beside(plain, prompts)
    replays.clear()
    assert drawn_beside(engine, prompts) == expected
    short = engine.steps.short
    assert all(rows == rung(rows) for _, rows, _ in short)
    assert sum(replays.count(step.graph) for step in short.values()) >= 6
    assert plain.steps.short == {}
    alone = uncaptured(llm, context=96, most=8)
    assert [answer(alone, prompt, 2) for prompt in prompts] == [expected[n] for n in range(14)]


def test_guesses_are_replays(llm, replays):
    """Steps that check guesses are captured as those with prompts are; the answer is the same."""
    prompt = [7, 8, 9, 10] * 6
    engine = BatchEngine(llm, context=96, most=2, speculate=3)
    plain = uncaptured(llm, context=96, most=2)
    assert answer(engine, prompt, 40) == answer(plain, prompt, 40)
    assert engine.guessed
    replays.clear()
    for last in range(11, 17):  # and prompts of one size
        tokens = [*range(last, last + 9)]
        assert answer(engine, tokens, 3) == answer(plain, tokens, 3)
    assert any(replays.count(step.graph) for step in engine.steps.short.values())


def test_few_captured_steps_are_kept(llm, monkeypatch):
    """The one that was used the longest ago makes room, and has to come as often again."""
    monkeypatch.setattr(batches, "KEPT", 2)
    engine = BatchEngine(llm, context=96, most=4)

    def ask(size, times):
        for first in range(times):
            answer(engine, [first + 30 + size, *range(first + 1, first + size)], 1)
        return [rows for _, rows, _ in engine.steps.short]

    assert ask(5, 5) == [8]
    assert ask(13, 5) == [8, 16]
    assert ask(21, 5) == [16, 24]
    assert ask(6, 3) == [16, 24]
    assert ask(7, 2) == [24, 8]


def test_no_memory_to_capture_a_short_prompt(llm, monkeypatch):
    """Answers are the same, what is kept is given back, and it is not tried again."""
    engine, plain = (make(llm, context=96, most=4) for make in (BatchEngine, uncaptured))
    prompts = [[first, *range(first, first + 5)] for first in range(1, 8)]
    longer = [[first, *range(first, first + 20)] for first in range(1, 8)]
    expected = [answer(plain, prompt, 1) for prompt in [*prompts, *longer]]
    got = [answer(engine, prompt, 1) for prompt in prompts]
    assert engine.steps.short
    tries = no_room(monkeypatch)
    assert [*got, *(answer(engine, prompt, 1) for prompt in longer)] == expected
    assert engine.steps.short == {}
    assert len(tries) == 1


def test_little_memory(llm, monkeypatch):
    """Where captured steps would take more than their share of it, none are kept."""
    monkeypatch.setattr(batches, "captured_bytes", lambda *_: 1 << 60)
    monkeypatch.setattr(type(llm.model.device.memory), "available", lambda _: 1 << 40)
    engine = BatchEngine(llm, context=96, most=4)
    assert not engine.steps.shorts
    for first in range(1, 7):
        answer(engine, [first, *range(first, first + 5)], 1)
    assert engine.steps.short == {}


@pytest.mark.usefixtures("queue")
def test_a_queue_needs_no_short_steps(llm):
    """It is filled while the device computes."""
    assert not BatchEngine(llm, context=96, most=4).steps.shorts
