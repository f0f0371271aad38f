"""In which pieces prompts are computed, of one conversation and of many sequences."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from propolis_workers.llm import SamplingParams
from propolis_workers.llm import chunks
from propolis_workers.llm.batch.blocks import Blocks
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.batch.pace import Pace
from propolis_workers.llm.batch.scheduler import Scheduler
from propolis_workers.llm.batch.scheduler import Sequence
from propolis_workers.llm.chunks import Pieces
from propolis_workers.llm.memory import passing_bytes


SIZES = (32, 16, 8)


def device(free):
    """One with a queue and so many bytes."""
    memory = SimpleNamespace(available=lambda: free)
    return SimpleNamespace(memory=memory, guarded=lambda call: call())


@pytest.fixture
def queued(monkeypatch):
    """Every device has a queue."""
    monkeypatch.setattr(chunks, "has_queue", lambda _: True)


@pytest.mark.usefixtures("queued")
def test_pieces_that_fit(llm):
    """The widest, where they take a little of what is free; none is captured where none fits."""
    config = llm.model.config
    each = passing_bytes(config, 8192, 512)

    def found(free, capacity=8192, sequences=1, **changed):
        given = SimpleNamespace(**{**vars_of(config), **changed})
        return chunks.pieces_of(given, device(free), capacity, 1000, sequences=sequences)

    assert found(1 << 50) == Pieces((2048, 1024, 512), captured=True)
    assert found(1 << 50, capacity=1500) == Pieces((1024, 512), captured=True)
    assert found(1 << 50, capacity=600) == Pieces((512,), captured=True)
    assert found(1 << 50, capacity=600, sequences=3) == Pieces((1024, 512), captured=True)
    assert found(1 << 50, sequences=2) == Pieces((8192, 4096, 2048, 1024, 512), captured=True)
    assert found(1 << 50, capacity=100, sequences=64).sizes == (4096, 2048, 1024, 512)
    # Whatever a sequence's context is, steps of many take the room of all their rows.
    wide = passing_bytes(config, 8192, 4096)
    assert found(1000 + 40 * wide, capacity=64, sequences=512).sizes[0] == 8192
    assert found(1000 + 10 * wide, capacity=64, sequences=512).sizes[0] < 4096
    assert found(1 << 50, windows=(64,)) == Pieces((512,), captured=True)
    assert found(1000 + 2 * each) == Pieces((512,), captured=True)
    assert found(1000 + each // 2) == Pieces((512,), captured=False)
    assert found(None) == Pieces((512,), captured=False)


def vars_of(config):
    """A configuration's fields and what is derived from them."""
    names = [name for name in dir(config) if not name.startswith("__")]
    return {name: getattr(config, name) for name in names}


def test_the_cpu_has_no_queue(llm):
    """No pieces of long prompts are captured there, and they are small."""
    assert chunks.pieces_of(llm.model.config, llm.model.device, 8192, 0).captured is False


@pytest.mark.parametrize("least", [4, 64])
@pytest.mark.usefixtures("queued")
def test_who_wants_smaller_steps_gets_them(llm, least):
    """A budget of less than a chunk is what it is."""
    found = chunks.pieces_of(llm.model.config, device(1 << 50), 8192, 0, least)
    assert found == Pieces((least,), captured=True)


def planned(scheduler):
    """Tokens of each part of the next step, which is computed."""
    plan = scheduler.plan()
    scheduler.done(plan)
    return [part.count for part in plan.parts]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(33, [[32], [1]]), (40, [[32], [8]]), (41, [[32], [8], [1]]), (7, [[7]]), (64, [[32], [32]])],
)
def test_a_prompt_alone(tokens, expected):
    """It has steps wider than the budget, of a few sizes."""
    scheduler = Scheduler(Blocks(40, 16, first=1), 4, 8, alone=SIZES)
    scheduler.add(Sequence(list(range(tokens))))
    assert [planned(scheduler) for _ in expected] == expected


def test_prompts_together():
    """Several share a wide step as they come, of any size, and no step has more."""
    scheduler = Scheduler(Blocks(40, 16, first=1), 4, 8, alone=SIZES)
    for first, tokens in ((0, 13), (50, 13), (100, 30)):
        scheduler.add(Sequence(list(range(first, first + tokens))))
    assert planned(scheduler) == [13, 13, 6]
    # Two wait for their next tokens now: the third has what is left of the budget.
    for own in scheduler.running[:2]:
        own.tokens.append(7)
    assert planned(scheduler) == [1, 1, 6]


def test_who_decodes_is_not_delayed():
    """Beside a long prompt that comes while somebody decodes a step has the budget alone."""
    scheduler = Scheduler(Blocks(40, 16, first=1), 4, 8, alone=SIZES)
    scheduler.add(Sequence([1, 2, 3]))
    assert planned(scheduler) == [3]
    scheduler.running[0].tokens.append(7)
    scheduler.add(Sequence(list(range(60))))
    assert planned(scheduler) == [1, 7]


def test_answers_are_the_same(llm):
    """Whatever the pieces are: answers of prompts that come one after the other, and again."""

    def answers(engine):
        found = {}
        for key, prompt in enumerate([list(range(5, 58)), list(range(5, 40)), list(range(9, 70))]):
            params = SamplingParams()
            engine.add(key, Request(prompt=prompt, params=params, max_tokens=6))
            engine.step()
        while engine.busy:
            found |= {one.key: one.finish.ids for one in engine.step() if one.finish is not None}
        return [found[key] for key in range(3)]

    plain = BatchEngine(llm, context=96, most=3, budget=8)
    engine = BatchEngine(llm, context=96, most=3, budget=8)
    engine._pace = Pace(SIZES, stays=True)
    assert answers(engine) == answers(plain)
