"""Many sequences at once: each gets what it gets alone, whatever happens to the others."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import ops
from propolis.errors import DeviceError
from propolis.errors import ModelError
from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BLOCK
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.rows import Rows


GREEDY = SamplingParams()


@pytest.fixture(autouse=True, params=["waits", "queues"])
def _device(request):
    """Steps are waited for, as on the CPU; or queued ahead, as on a device with a queue."""
    if request.param == "queues":
        request.getfixturevalue("queue")


def request(prompt, tokens=8, **params) -> Request:
    """What somebody wants, greedy unless said otherwise."""
    return Request(prompt=list(prompt), params=SamplingParams(**params), max_tokens=tokens)


def answers(engine: BatchEngine, requests: list[Request], arrive=lambda _: 99) -> list:
    """How the answers of all went, in order; ``arrive`` says how many come at each step."""
    coming, finished, step = list(enumerate(requests)), {}, 0
    while engine.busy or coming:
        for key, wanted in coming[: arrive(step)]:
            engine.add(key, wanted)
        del coming[: arrive(step)]
        for drawn in engine.step():
            assert drawn.error is None
            if drawn.finish is not None:
                finished[drawn.key] = drawn.finish
        step += 1
        assert step < 5000, "it does not end"
    return [finished[key] for key in range(len(requests))]


def alone(llm, wanted: Request):
    """How the answer goes on the engine of one sequence."""
    sequence = llm.engine(min(96, len(wanted.prompt) + wanted.max_tokens))
    from propolis_workers.llm.generation import Generation

    generation = Generation(
        sequence,
        llm.tokenizer,
        wanted.prompt,
        params=wanted.params,
        max_tokens=wanted.max_tokens,
        stops=wanted.stops,
    )
    "".join(generation)
    return generation.finish


def some(count: int, seed: int = 0) -> list[Request]:
    """Requests of many lengths, some of which begin alike, greedy and not."""
    rng = np.random.default_rng(seed)
    common = [int(rng.integers(1, 250)) for _ in range(40)]
    requests = []
    for number in range(count):
        own = [int(rng.integers(1, 250)) for _ in range(rng.integers(1, 30))]
        prompt = common[: int(rng.choice([0, 0, 16, 23, 40]))] + own
        how = {"temperature": 0.8, "top_k": 40, "seed": number} if number % 3 == 0 else {}
        requests.append(request(prompt, int(rng.integers(1, 20)), **how))
    return requests


@pytest.fixture(scope="module")
def truth(llm):
    """Thirty-two requests, and how each goes alone."""
    requests = some(32)
    return requests, [alone(llm, wanted) for wanted in requests]


def same(finish, other) -> bool:
    """Whether two answers are the same."""
    return (finish.ids, finish.text, finish.stop_reason) == (
        other.ids,
        other.text,
        other.stop_reason,
    )


@pytest.mark.parametrize("most", [1, 5, 32])
def test_each_gets_what_it_gets_alone(llm, truth, most):
    """Thirty-two at once, or as many as may run: tokens, text and reason of each alone."""
    requests, expected = truth
    engine = BatchEngine(llm, context=96, most=most, tokens=96 * 32)
    for finish, other in zip(answers(engine, requests), expected, strict=True):
        assert same(finish, other)


def test_whoever_comes_later(llm, truth):
    """They come one by one while others are in the middle."""
    requests, expected = truth
    engine = BatchEngine(llm, context=96, most=8, tokens=96 * 32)
    got = answers(engine, requests, arrive=lambda step: step % 2)
    assert all(map(same, got, expected))


def test_prompts_in_chunks(llm, truth):
    """A step of few tokens computes prompts piece by piece, beside the tokens of others."""
    requests, expected = truth
    engine = BatchEngine(llm, context=96, most=4, tokens=96 * 8, budget=7)
    assert all(map(same, answers(engine, requests), expected))


@pytest.mark.slow
def test_blocks_run_out(llm):
    """In a cache for one sequence and a half some are computed again, and nothing is lost."""
    requests = [request([number + 1, 2, 3], 60) for number in range(6)]
    requests += [
        request([9, 8, number + 1], 70, temperature=1.0, seed=number) for number in range(6)
    ]
    engine = BatchEngine(llm, context=96, most=16, tokens=144)
    got = answers(engine, requests)
    assert all(same(one, alone(llm, wanted)) for one, wanted in zip(got, requests, strict=True))
    assert engine.scheduler.preempted > 0


def test_all_blocks_come_back(llm, truth):
    """When all is done every block can be taken, and the same requests run again."""
    requests, expected = truth
    engine = BatchEngine(llm, context=96, most=8, tokens=96 * 4)
    for _ in range(2):
        assert all(map(same, answers(engine, requests), expected))
        assert engine.blocks.taken == 0
        assert engine.blocks.available == engine.blocks.count


def test_what_begins_alike_is_computed_once(llm):
    """The second of two prompts that begin alike finds whole blocks, and a part of the next."""
    engine = BatchEngine(llm, context=96)
    prompt = list(range(1, 3 * BLOCK + 6))
    (first,) = answers(engine, [request(prompt)])
    (again,) = answers(engine, [request(prompt)])
    (other,) = answers(engine, [request([*prompt[: 2 * BLOCK + 5], 200, 201])])
    assert same(first, again)
    assert same(other, alone(llm, request([*prompt[: 2 * BLOCK + 5], 200, 201])))
    assert [0, 3 * BLOCK, 2 * BLOCK + 5] == [
        finish.cached_tokens for finish in (first, again, other)
    ]


def test_a_step_is_captured_once_for_each_size(llm):
    """Sequences in numbers between the powers of two share the steps of those."""
    engine = BatchEngine(llm, context=96, most=8)
    answers(engine, [request([n + 1, 2, 3], 12) for n in range(7)])
    answers(engine, [request([n + 1, 2, 3], 12) for n in range(5)])
    assert {8} == set(engine.steps.decodes)
    answers(engine, [request([9, 2, 3], 12)])
    assert {1, 8} == set(engine.steps.decodes)


def test_cancel(llm):
    """An answer ends where it is, its blocks are free, and the other goes on as before."""
    engine = BatchEngine(llm, context=96)
    engine.add("gone", request([1, 2, 3], 50))
    engine.add("stays", request([4, 5, 6], 9))
    for _ in range(4):
        engine.step()
    taken = engine.blocks.taken
    finish = engine.cancel("gone")
    assert finish.stop_reason == "INTERRUPTED"
    assert len(finish.ids) == 4
    assert engine.blocks.taken < taken
    assert engine.cancel("gone") is None
    drawn = []
    while engine.busy:
        drawn += engine.step()
    assert {"stays"} == {one.key for one in drawn}
    assert drawn[-1].finish.ids == alone(llm, request([4, 5, 6], 9)).ids


def test_the_context_ends_an_answer(llm):
    """An answer ends where the context does, and says so."""
    engine = BatchEngine(llm, context=24)
    (finish,) = answers(engine, [request(range(1, 20), 50)])
    assert (finish.stop_reason, len(finish.ids)) == ("CONTEXT_FULL", 5)


def test_stop_strings(llm):
    """An answer ends before a stop string, which others do not see."""
    plain = alone(llm, request([5, 6, 7], 20))
    stop = plain.text[3:5]
    wanted = Request(prompt=[5, 6, 7], params=GREEDY, max_tokens=20, stops=(stop,))
    got = answers(BatchEngine(llm, context=96), [wanted, request([5, 6, 7], 20)])
    assert same(got[0], alone(llm, wanted))
    assert got[0].stop_string == stop
    assert same(got[1], plain)


def test_nobody_waits_for_ever(llm):
    """A sequence as long as the whole cache runs, though a part of it is another's."""
    engine = BatchEngine(llm, context=96, tokens=48)
    prompt = list(range(1, 46))
    for _ in range(3):
        (finish,) = answers(engine, [request(prompt[:-5] + [7] * 5, 5)])
        assert finish.stop_reason in ("CONTEXT_FULL", "MAX_TOKENS", "EOS")
        answers(engine, [request(prompt, 5)])


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (request([]), "the prompt is empty"),
        (request(range(1, 97)), "no room for an answer"),
        (request([1, 100_000]), "not in the vocabulary"),
    ],
)
def test_prompts_that_cannot_be_run(llm, wanted, says):
    """They are refused when they are given, and the engine goes on."""
    engine = BatchEngine(llm, context=96)
    with pytest.raises(PropolisError, match=says):
        engine.add(0, wanted)
    assert not engine.busy
    assert answers(engine, [request([1, 2])])


def test_a_name_is_used_once_at_a_time(llm):
    """A name whose answer is not finished is refused; the answer is not touched."""
    engine = BatchEngine(llm, context=96)
    engine.add("x", request([1, 2, 3]))
    with pytest.raises(UsageError, match="'x' names an answer"):
        engine.add("x", request([1, 2, 3]))
    with pytest.raises(ModelError, match="negative"):
        engine.add("y", request([1, -2, 3]))
    while engine.busy:
        engine.step()
    assert engine.blocks.taken == 0


def test_options_that_cannot_be_used(llm):
    """What makes no engine is refused by name."""
    with pytest.raises(ModelError, match="most is 0"):
        BatchEngine(llm, context=96, most=0)
    engine = BatchEngine(llm, context=96)
    with pytest.raises(UsageError, match="max_tokens"):
        engine.add(0, request([1], 0))


def test_a_step_that_fails_once_is_computed_again(llm, truth, monkeypatch):
    """Each tenth step fails before its tokens are drawn, and the answers are those alone."""
    requests, expected = truth
    engine = BatchEngine(llm, context=96, most=8, tokens=96 * 4)
    compute, steps = engine._rows, iter(range(1, 10_000))

    def failing(plan):
        rows = compute(plan)
        if next(steps) % 10 == 0:
            raise DeviceError("rocm:0: a launch failed")
        return rows

    monkeypatch.setattr(engine, "_rows", failing)
    assert all(map(same, answers(engine, requests), expected))
    assert engine.blocks.taken == 0


def test_what_a_failed_step_wrote_is_nobodys_prefix(llm, monkeypatch):
    """A failure that is told only when a row is read: blocks filled by then are computed anew."""
    prompt = [1 + n % 7 for n in range(40)]
    engine = BatchEngine(llm, context=96)
    engine.add("a", request(prompt, 9))
    compute, failures = engine._rows, iter([True])

    class Unread:
        """Rows of a step that failed."""

        at = None

        def best(self, _):
            """As of Rows."""
            raise DeviceError("a kernel failed")

    def lost(plan):
        rows, due, scored = compute(plan)
        if not due or not next(failures, False):
            return rows, due, scored
        for pair in engine._cache.layers:
            for kept in pair:
                ops.assign(kept, ops.full(kept.shape, np.nan, kept.dtype, kept.device))
        return Unread(), due, scored

    monkeypatch.setattr(engine, "_rows", lost)
    drawn = []
    while engine.busy:
        drawn += engine.step()
    assert next(failures, "failed") == "failed"
    assert drawn[-1].finish.ids == alone(llm, request(prompt, 9)).ids


def test_a_step_that_fails_twice_ends_what_ran(llm, monkeypatch):
    """Who runs is given up by name; who waited for a place is answered afterwards."""
    engine = BatchEngine(llm, context=96, most=2)
    for key in "abc":
        engine.add(key, request([ord(key), 2, 3], 5))
    with monkeypatch.context() as broken:
        broken.setattr(engine, "_rows", lambda _: (_ for _ in ()).throw(DeviceError("no")))
        assert engine.step() == []
        with pytest.raises(DeviceError, match="no"):
            engine.step()
    assert sorted(engine.abandon()) == ["a", "b"]
    drawn = []
    while engine.busy:
        drawn += engine.step()
    assert {"c"} == {one.key for one in drawn}
    assert drawn[-1].finish.ids == alone(llm, request([ord("c"), 2, 3], 5)).ids


class Damaged:
    """Rows some of which are NaN."""

    def __init__(self, rows, bad):
        self._rows, self._bad = rows, bad

    def __getattr__(self, name):
        return getattr(self._rows, name)

    def best(self, wanted):
        """As of Rows."""
        found = zip(wanted, self._rows.best(wanted), strict=True)
        return [(token, np.nan if row in self._bad else logit) for row, (token, logit) in found]

    def top(self, wanted, count, temperatures):
        """As of Rows."""
        found = zip(wanted, self._rows.top(wanted, count, temperatures), strict=True)
        return [
            one._replace(logits=one.logits * np.nan) if row in self._bad else one
            for row, one in found
        ]

    def all(self, wanted):
        """As of Rows."""
        found = np.array(self._rows.all(wanted))
        found[[row in self._bad for row in wanted]] = np.nan
        return found


DRAWN = {"temperature": 0.5, "seed": 1}


@pytest.mark.parametrize(
    "how", [{}, DRAWN, DRAWN | {"top_k": 5}], ids=["greedy", "drawn", "of the likeliest"]
)
def test_an_answer_that_fails_fails_alone(llm, monkeypatch, how):
    """Logits without a token end that answer with the reason; the others are not touched."""
    engine = BatchEngine(llm, context=96)
    engine.add("bad", request([1, 2, 3], 9, **how))
    engine.add("good", request([4, 5, 6], 9))
    compute = engine._rows

    def damaged(plan):
        rows, due, scored = compute(plan)
        keys = {part: engine._keys[part.sequence] for part in due}
        bad = [row for part in due if keys[part] == "bad" for row in due[part]]
        return Damaged(rows, bad), due, scored

    monkeypatch.setattr(engine, "_rows", damaged)
    drawn = []
    while engine.busy:
        drawn += engine.step()
    (error,) = (one.error for one in drawn if one.key == "bad")
    assert "NaN" in str(error)
    assert drawn[-1].finish.ids == alone(llm, request([4, 5, 6], 9)).ids


def test_greedy_answers_copy_no_logits(llm, monkeypatch):
    """Where every token is the likeliest, the host reads that and no vocabulary."""
    wanted = [request([n, 5, 6], 6) for n in range(1, 4)]
    expected = [alone(llm, one) for one in wanted]
    monkeypatch.setattr(Rows, "all", lambda *_: pytest.fail("logits were copied"))
    got = answers(BatchEngine(llm, context=96), wanted)
    assert all(map(same, got, expected))


@pytest.mark.parametrize("more", [{}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_p": 0.7, "min_p": 0.1}])
def test_the_likeliest_alone_are_copied(llm, monkeypatch, more):
    """Where tokens are drawn from the likeliest, the host reads these, and draws as from all."""
    how = {"temperature": 0.9, "seed": 3, **more}
    wanted = [request([n, 5, 6], 12, **how, top_k=10 * n) for n in range(1, 4)]
    wanted.append(request([9, 9], 12))
    expected = [alone(llm, one) for one in wanted]
    monkeypatch.setattr(Rows, "all", lambda *_: pytest.fail("logits were copied"))
    got = answers(BatchEngine(llm, context=96), wanted)
    assert all(map(same, got, expected))


def repeating(count: int) -> list[Request]:
    """Requests whose prompts say the same again and again."""
    rng = np.random.default_rng(4)
    words = [[int(rng.integers(1, 250)) for _ in range(5)] for _ in range(count)]
    return [
        request(word * 6 + word[:2], 30, **({"temperature": 0.7, "seed": n} if n % 3 == 0 else {}))
        for n, word in enumerate(words)
    ]


def forced(monkeypatch, ids):
    """Make guesses right as often as they may be: what will be drawn, and then something else."""
    from propolis_workers.llm.batch import engine

    def told(tokens, most):
        found = next((i for i in ids if list(i[: len(tokens)]) == list(tokens)), None)
        if found is None or most < 1:
            return ()
        right = list(found[len(tokens) : len(tokens) + most - 1])
        return (*right, 7)

    monkeypatch.setattr(engine, "guess", told)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [96 * 32, 200])
def test_guesses_change_nothing(llm, tokens):
    """With look-ups each gets the tokens it gets without, also where blocks are short."""
    requests = repeating(12)
    expected = [alone(llm, wanted) for wanted in requests]
    engine = BatchEngine(llm, context=96, most=8, tokens=tokens, speculate=6)
    for finish, other in zip(answers(engine, requests), expected, strict=True):
        assert same(finish, other)
    assert engine.guessed > engine.taken
    assert engine.blocks.taken == 0


def test_right_guesses_save_steps(llm, monkeypatch):
    """Tokens that were guessed are taken in one step, up to the first that is wrong."""
    wanted = request([5, 6, 7], 30)
    expected = alone(llm, wanted)
    forced(monkeypatch, [wanted.prompt + expected.ids])
    engine = BatchEngine(llm, context=96, speculate=5)
    engine.add(0, wanted)
    steps, drawn = 0, []
    while engine.busy:
        told = engine.step()
        steps += 1
        drawn += told
        assert len(told) <= 5
    assert [one.token for one in drawn] == expected.ids
    assert same(drawn[-1].finish, expected)
    assert steps <= 2 + len(expected.ids) // 4
    assert engine.taken >= 3 * (steps - 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "most", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3, 4], 3, (9, 1, 2)),
        ([1, 2, 8, 1, 2, 9, 1, 2], 1, (9,)),
        ([1, 2, 3], 4, ()),
        ([5, 5, 5, 5], 4, (5,)),
        ([1, 2, 7, 1, 2], 0, ()),
        ([], 4, ()),
    ],
)
def test_what_is_guessed(tokens, most, expected):
    """What followed the last earlier occurrence of as many last tokens as possible."""
    from propolis_workers.llm.batch.lookup import guess

    assert guess(tokens, most) == expected
