"""How much of the prompts a step has while others wait for their next tokens."""

from __future__ import annotations

import pytest

from propolis.errors import OutOfMemoryError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.batch.pace import BEARABLE
from propolis_workers.llm.batch.pace import PATIENCE
from propolis_workers.llm.batch.pace import Pace


SIZES = (2048, 1024, 512)


def test_a_fast_device_has_more():
    """As long as twice as many may take no longer than is borne, up to the most."""
    pace, found = Pace(SIZES), []
    for _ in range(4):
        found.append(pace.tokens)
        pace.took(pace.tokens, 0.4 * BEARABLE)
    assert found == [512, 1024, 2048, 2048]


def test_a_slow_device_stays():
    """It has the fewest however long they take, and what takes more than half of it no more."""
    for seconds in (10, 0.6 * BEARABLE):
        pace = Pace(SIZES)
        for _ in range(4):
            pace.took(pace.tokens, seconds)
        assert pace.tokens == 512


def test_what_took_too_long_is_not_tried_at_once():
    """But later again, for what took long may have been the first of its kind."""
    pace, found = Pace(SIZES), []
    for _ in range(2 * PATIENCE):
        found.append(pace.tokens)
        pace.took(pace.tokens, (1.1 if pace.tokens == 1024 else 0.4) * BEARABLE)
    assert [at for at, tokens in enumerate(found) if tokens == 1024] == [1, 1 + PATIENCE + 1]


def test_steps_in_which_nobody_waits():
    """They have what one sequence gains by, and more where that is soon done."""
    pace = Pace((8192, 4096, *SIZES))
    assert pace.alone == SIZES
    for _ in range(3):
        pace.took(pace.tokens, 0.0)
    assert (pace.tokens, pace.alone) == (4096, (4096, *SIZES))
    pace.short_of_memory()
    assert pace.alone == (512,)


def test_one_that_stays():
    """Whoever asks for so many tokens has them beside others, and the usual ones alone."""
    pace = Pace(SIZES, stays=True)
    pace.took(512, 0.0)
    assert (pace.tokens, pace.alone) == (512, SIZES)


def test_short_of_memory():
    """It has the fewest from then on: each step that fails makes all prompts be read again."""
    pace = Pace(SIZES)
    pace.took(512, 0.0)
    pace.took(1024, 0.0)
    pace.short_of_memory()
    for _ in range(2 * PATIENCE):
        pace.took(pace.tokens, 0.0)
        assert pace.tokens == 512


@pytest.mark.parametrize("tokens", [1, 300, 2048])
def test_other_steps_tell_nothing(tokens):
    """Those with less than a step may have, and those in which nobody waited."""
    pace = Pace(SIZES)
    pace.took(tokens, 0.001 * BEARABLE)
    assert pace.tokens == 512


@pytest.mark.parametrize(("tokens", "then"), [(1024, 2048), (1025, 1024), (2047, 1024)])
def test_a_slow_step_with_less_than_it_may_have(tokens, then):
    """It counts where the next smaller step would have been shorter."""
    pace = Pace(SIZES)
    pace.took(512, 0.0)
    pace.took(1024, 0.0)
    pace.took(tokens, 2 * BEARABLE)
    assert pace.tokens == then


def test_only_steps_that_were_waited_for_are_timed(llm, monkeypatch):
    """Those beside others' tokens, after one that was waited for: not prompts alone."""
    told = []
    engine = BatchEngine(llm, context=96, most=3, budget=8)
    monkeypatch.setattr(engine._pace, "took", lambda tokens, _: told.append(tokens))
    engine.add("a", Request(prompt=[7] * 20, params=SamplingParams(), max_tokens=20))
    for _ in range(3):
        engine.step()
    assert told == []
    engine.add("b", Request(prompt=[9] * 20, params=SamplingParams(), max_tokens=4))
    for _ in range(3):
        engine.step()
    assert told == [8, 8, 7]


def test_answers_are_the_same(llm, monkeypatch):
    """Those of a device that becomes faster, whose prompts come while others decode."""

    def answers(engine):
        found, most = {}, 0
        for key in range(4):
            prompt = [(key * 17 + i) % 90 + 5 for i in range(60)]
            engine.add(key, Request(prompt=prompt, params=SamplingParams(), max_tokens=30))
            engine.step()
        while engine.busy:
            most = max(most, engine.scheduler.budget)
            found |= {one.key: one.finish.ids for one in engine.step() if one.finish is not None}
        return [found[key] for key in range(4)], most

    plain = BatchEngine(llm, context=96, most=4, budget=8)
    engine = BatchEngine(llm, context=96, most=4, budget=8)
    engine._pace = Pace((32, 16, 8))
    monkeypatch.setattr(engine._pace, "took", lambda *told: Pace.took(engine._pace, told[0], 0.0))
    (expected, least), (found, most) = answers(plain), answers(engine)
    assert (least, most) == (8, 32)
    assert found == expected


def test_a_step_with_too_many(llm, monkeypatch):
    """One that there is no memory for is made again with fewer tokens, and nobody's answer ends."""
    engine = BatchEngine(llm, context=96, most=4, budget=8)
    engine._pace = Pace((32, 8))
    mixed, limit = engine.steps.mixed, [32]

    def small(parts, rows, ends):
        if rows > limit[0]:
            msg = f"{rows} rows"
            raise OutOfMemoryError(msg)
        return mixed(parts, rows, ends)

    monkeypatch.setattr(engine.steps, "mixed", small)
    engine._pace.took(8, 0.0)
    for key in range(3):
        engine.add(key, Request(prompt=[7 + key] * 40, params=SamplingParams(), max_tokens=8))
        if key == 0:
            engine.step()
            engine.step()
            limit[0] = 8
    ended = []
    for _ in range(100):  # without end, where it makes the same step again
        ended += [one.finish for one in engine.step() if one.finish is not None]
    assert [len(finish.ids) for finish in ended] == [8, 8, 8]


def test_what_is_asked_for_is_kept(llm):
    """A budget that is given is every step's; else it is a chunk's where a device has no queue."""
    assert BatchEngine(llm, context=96, most=2, budget=24)._pace._sizes == [24]
    assert BatchEngine(llm, context=96, most=2)._pace._sizes == [512]
