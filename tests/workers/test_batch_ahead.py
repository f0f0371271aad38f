"""Steps of many sequences that are queued before the last one's tokens are known."""

from __future__ import annotations

import pytest
from batches import answers

from propolis.dispatch.capture import Graph
from propolis.errors import DeviceError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm import rows as rows_module
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request


def request(prompt, tokens) -> Request:
    """What somebody wants, greedy."""
    return Request(prompt=prompt, params=SamplingParams(), max_tokens=tokens)


def alone(llm, wanted: Request) -> list[int]:
    """The answer on an engine of one sequence, which waits for each step."""
    engine = llm.engine(96)
    engine._queues = False
    ids = [int(engine.prefill(wanted.prompt).argmax())]
    while len(ids) < wanted.max_tokens and ids[-1] not in llm.tokenizer.eos_ids:
        ids.append(engine.decode_likeliest(ids[-1], llm.tokenizer.vocab_size)[0])
    return ids


def test_a_step_ahead(llm, queue):
    """While all go on, each step is queued before the tokens of the one before it are read."""
    wanted = [request([1, 2, 3], 9), request([4, 5, 6], 12)]
    engine = BatchEngine(llm, context=96, most=2)
    for key, one in enumerate(wanted):
        engine.add(key, one)
    finished, queued = {}, []
    while engine.busy:
        del queue[:]
        for drawn in engine.step():
            if drawn.finish is not None:
                finished[drawn.key] = drawn.finish.ids
        queued.append(engine._ahead is not None)
        assert len(queue) <= 1
    assert [finished[key] for key in range(2)] == [alone(llm, one) for one in wanted]
    # Not by the prompts' step; nor by the one after an answer ended, which is of another size.
    assert queued.count(True) >= len(queued) - 4


def test_steps_ahead_go_on_where_answers_end(llm, queue):
    """The rows of who has ended are nobody's, whichever they are: the others' steps stay ahead."""
    wanted = [
        request([number + 1, 2, 3], length)
        for number, length in enumerate((20, 6, 20, 9, 20, 20, 20, 20))
    ]
    engine = BatchEngine(llm, context=96, most=8)
    for key, one in enumerate(wanted):
        engine.add(key, one)
    while engine._ahead is None:
        engine.step()
    finished, counts = {}, []
    while engine.busy:
        drawn = engine.step()
        finished |= {one.key: one.finish.ids for one in drawn if one.finish is not None}
        counts.append((len(drawn), engine._ahead is not None))
    assert finished == {key: alone(llm, one) for key, one in enumerate(wanted)}
    assert {8, 7, 6} == {count for count, _ in counts}
    assert [ahead for _, ahead in counts[:-1]] == [True] * (len(counts) - 1)
    assert engine.blocks.taken == 0


def test_steps_ahead_while_others_wait(llm, queue):
    """Where nobody else may come in they go on; who waited comes in once somebody has ended."""
    wanted = [request([number + 1, 2, 3], 12 + 5 * number) for number in range(4)]
    engine = BatchEngine(llm, context=96, most=2)
    for key, one in enumerate(wanted):
        engine.add(key, one)
    finished, ahead, waited = {}, 0, 0
    while engine.busy:
        drawn = engine.step()
        finished |= {one.key: one.finish.ids for one in drawn if one.finish is not None}
        if engine.scheduler.waiting:
            waited += 1
            ahead += engine._ahead is not None
    assert finished == {key: alone(llm, one) for key, one in enumerate(wanted)}
    assert waited > 12
    assert ahead >= waited - 8


def test_who_comes_meanwhile(llm, queue):
    """A request that comes while a step is queued ahead waits for that step alone."""
    engine = BatchEngine(llm, context=96, most=2)
    engine.add(0, request([1, 2, 3], 40))
    while engine._ahead is None:
        engine.step()
    engine.add(1, request([4, 5, 6], 4))
    keys = [{drawn.key for drawn in engine.step()} for _ in range(2)]
    assert keys == [{0}, {0, 1}]
    assert queue


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_goes_meanwhile(llm, queue, gone):
    """Whoever is cancelled while a step is queued ahead takes nothing of it; the others do."""
    wanted = [request([number + 1, 2, 3], 14) for number in range(3)]
    engine = BatchEngine(llm, context=96, most=3)
    for key, one in enumerate(wanted):
        engine.add(key, one)
    while engine._ahead is None:
        engine.step()
    assert engine.cancel(gone).stop_reason == "INTERRUPTED"
    engine.add(3, request([9, 9], 3))
    finished = {}
    while engine.busy:
        for drawn in engine.step():
            assert drawn.key != gone
            if drawn.finish is not None:
                finished[drawn.key] = drawn.finish.ids
    expected = {key: alone(llm, one) for key, one in enumerate(wanted) if key != gone}
    assert finished == {**expected, 3: alone(llm, request([9, 9], 3))}
    assert engine.blocks.taken == 0
    assert queue


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_last_rows_go(llm, queue, cancelled):
    """Whose rows are the last leave a step that the others go on in, ended or cancelled."""
    lengths = [30, 30, 30, 30, 30, 12, 30, 9] if not cancelled else [30] * 8
    wanted = [request([n + 1, 2, 3], length) for n, length in enumerate(lengths)]
    engine = BatchEngine(llm, context=96, most=8)
    for key, one in enumerate(wanted):
        engine.add(key, one)
    finished, steps = {}, 0
    while engine.busy:
        for drawn in engine.step():
            if drawn.finish is not None:
                finished[drawn.key] = drawn.finish.ids
        steps += 1
        if cancelled and steps in (4, 5, 9):
            engine.cancel({4: 7, 5: 6, 9: 5}[steps])
    gone = {5, 6, 7} if cancelled else set()
    expected = {key: alone(llm, one) for key, one in enumerate(wanted) if key not in gone}
    assert finished == expected
    assert queue


def test_a_failure_that_is_told_at_the_wait(llm, queue, monkeypatch):
    """It is of a step behind which another is queued: both count for nothing, and all goes on."""
    later, calls = rows_module.numpy_later, iter(range(1, 10_000))

    def failing(tensor):
        found = later(tensor)

        def wait():
            if next(calls) in (4, 9, 10, 15):
                raise DeviceError("rocm:0: a kernel failed")
            return found()

        return wait

    monkeypatch.setattr(rows_module, "numpy_later", failing)
    wanted = [request([number + 1, 2, 3], 20) for number in range(3)]
    found = answers(BatchEngine(llm, context=96, most=3), wanted)
    assert found == [alone(llm, one) for one in wanted]
    assert next(calls) > 15
    assert queue


def test_a_step_ahead_that_fails(llm, queue, monkeypatch):
    """Each fifth replay fails: those that were queued ahead are run again, for nobody to notice."""
    wanted = [request([number + 1, 2, 3], 30) for number in range(3)]
    expected = [alone(llm, one) for one in wanted]
    replay, numbers, failed = Graph.replay, iter(range(1, 10_000)), []

    def failing(graph):
        if next(numbers) % 5 == 0:
            failed.append(graph)
            raise DeviceError("rocm:0: a launch failed")
        replay(graph)

    monkeypatch.setattr(Graph, "replay", failing)
    found = answers(BatchEngine(llm, context=96, most=3), wanted)
    assert found == expected
    assert len(failed) > 4
    assert queue
