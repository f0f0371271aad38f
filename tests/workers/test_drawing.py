"""Tokens that the device draws, so that the host reads no more than which they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batches import answers

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.errors import DeviceError
from propolis.errors import ModelError
from propolis.errors import OutOfMemoryError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.answer import Answer
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.drawing import Drawing
from propolis_workers.llm.drawing import Odds
from propolis_workers.llm.generation import Generation
from propolis_workers.llm.rows import Rows
from propolis_workers.llm.sampling import NoTokenError
from propolis_workers.llm.sampling import Sampler


def request(prompt, tokens=24, **params) -> Request:
    """What somebody wants."""
    return Request(prompt=prompt, params=SamplingParams(**params), max_tokens=tokens)


REQUESTS = [
    request([1, 2, 3], temperature=0.8, top_k=40, seed=1),
    request([4, 5, 6], temperature=1.3, top_k=5, top_p=0.9, seed=2),
    request([7, 8], 12, temperature=0.7, top_p=0.5, min_p=0.02, seed=3),
    request([9, 9]),
    request([3, 1], 17, temperature=0.9, top_k=200, min_p=0.1, seed=4),
]


@pytest.fixture
def apart(monkeypatch, queue):
    """The CPU as a device that is apart from the host, with a queue."""
    monkeypatch.setattr(Drawing, "serves", lambda *_: True)
    return queue


@pytest.fixture
def unread(monkeypatch):
    """Reading logits is an error."""

    def read(*_):
        pytest.fail("logits are read")

    monkeypatch.setattr(Rows, "all", read)
    monkeypatch.setattr(Rows, "top", read)
    monkeypatch.setattr(Answer, "draw", read)


def alone(llm, wanted: Request) -> list[int]:
    """The answer on an engine of one sequence."""
    params = wanted.params
    generation = Generation(
        llm.engine(96), llm.tokenizer, wanted.prompt, params=params, max_tokens=wanted.max_tokens
    )
    "".join(generation)
    return generation.finish.ids


@pytest.fixture
def expected(llm):
    """What the host draws of :data:`REQUESTS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drawing, "serves", lambda *_: False)
        return answers(BatchEngine(llm, context=96), REQUESTS)


def test_as_the_host_draws(llm, expected, apart, unread):
    """A device draws what the host draws by the same seeds, beside greedy ones; reads no logits."""
    engine = BatchEngine(llm, context=96)
    ahead = []
    for key, one in enumerate(REQUESTS):
        engine.add(key, one)
    finished = {}
    while engine.busy:
        finished |= {one.key: one.finish.ids for one in engine.step() if one.finish is not None}
        ahead.append(engine._ahead is not None)
    assert [finished[key] for key in range(len(REQUESTS))] == expected
    # Not while prompts are there; answers that end leave rows that are nobody's.
    assert ahead.count(True) >= len(ahead) - 5


def test_alone_as_the_host_draws(llm, expected, apart, unread):
    """So does an engine of one sequence, whose next step is queued before its token is read."""
    del apart[:]
    drawn = [(n, one) for n, one in enumerate(REQUESTS) if one.params.temperature]
    assert [alone(llm, one) for _, one in drawn] == [expected[n] for n, _ in drawn]
    assert len(apart) > 50


@pytest.mark.usefixtures("apart", "unread")
def test_draws_of_all_tokens(llm):
    """Where all tokens are candidates the same seed draws the same, alone and beside others."""
    wanted = [request([1, 2, n], temperature=9.0, seed=n) for n in range(4)]
    found = answers(BatchEngine(llm, context=96), wanted)
    assert found == [alone(llm, one) for one in wanted]
    assert len({tuple(ids) for ids in found}) == 4


def test_who_is_drawn_by_the_host(llm, expected, apart, monkeypatch):
    """Beside an answer with penalties, or one that tells probabilities, the host draws of all."""
    engine = BatchEngine(llm, context=96)
    penalised = request([5, 5], 30, temperature=0.8, presence_penalty=1.0, seed=9)
    told = replace(REQUESTS[0], logprobs=2)
    engine.add("penalised", penalised)
    engine.add("told", told)
    monkeypatch.setattr(Rows, "draw", lambda *_, **__: pytest.fail("the device is asked"))
    for key, one in enumerate(REQUESTS):
        engine.add(key, one)
    finished = {}
    while engine.busy:
        finished |= {one.key: one.finish.ids for one in engine.step() if one.finish is not None}
    assert [finished[key] for key in range(len(REQUESTS))] == expected
    assert finished["told"] == expected[0]
    assert finished["penalised"] == alone(llm, penalised)


def test_who_goes_meanwhile(llm, expected, apart):
    """Whoever is cancelled while a step is queued ahead leaves the others' keys as they are."""
    engine = BatchEngine(llm, context=96)
    for key, one in enumerate(REQUESTS):
        engine.add(key, one)
    while engine._ahead is None:
        engine.step()
    engine.cancel(1)
    finished = {}
    while engine.busy:
        finished |= {one.key: one.finish.ids for one in engine.step() if one.finish is not None}
    assert finished == {key: ids for key, ids in enumerate(expected) if key != 1}


@pytest.mark.parametrize("times", [1, 3])
def test_the_device_lacks_memory(llm, expected, apart, monkeypatch, times):
    """Where there is no memory to draw in, the host draws the same; no token is lost."""
    draw, left = Rows.draw, [0, 0, *[1] * times]

    def lacking(self, *args, **cuts):
        if left and left.pop(0):
            raise OutOfMemoryError("no memory")
        return draw(self, *args, **cuts)

    monkeypatch.setattr(Rows, "draw", lacking)
    assert answers(BatchEngine(llm, context=96), REQUESTS) == expected
    left[:] = [0, 0, *[1] * times]
    assert alone(llm, REQUESTS[0]) == expected[0]
    assert not left


def test_no_memory_after_the_prompt(llm, expected, apart, monkeypatch):
    """Where there is none to look for the likeliest of a prompt, the host draws the same."""
    find = ops.argmax

    def lacking(x, dim):
        if x.shape[1] == 1 and not tries:
            tries.append(1)
            raise OutOfMemoryError("no memory")
        return find(x, dim)

    tries: list[int] = []
    monkeypatch.setattr(ops, "argmax", lacking)
    assert alone(llm, REQUESTS[0]) == expected[0]
    assert tries


@pytest.mark.parametrize("most", [1 << 31, 1 << 40, 1 << 63, 1 << 70])
def test_more_than_there_are(llm, apart, most):
    """Whoever asks for more candidates than there are tokens gets all; the others what they ask."""
    wanted = [request([1, 2, n], temperature=0.9, top_k=k, seed=n) for n, k in enumerate((most, 5))]
    all_of_them = request([1, 2, 0], temperature=0.9, seed=0)
    expected = [alone(llm, all_of_them), alone(llm, wanted[1])]
    assert answers(BatchEngine(llm, context=96), wanted) == expected
    assert alone(llm, wanted[0]) == expected[0]


def test_an_error_of_the_device(llm, expected, apart, monkeypatch):
    """A step whose tokens cannot be read is computed again, and draws by the same keys."""
    later, reads = Rows.best_later, []

    def failing(self, wanted):
        found = later(self, wanted)

        def read():
            reads.append(1)
            if len(reads) == 7:
                raise DeviceError("a fault")
            return found()

        return read

    monkeypatch.setattr(Rows, "best_later", failing)
    assert answers(BatchEngine(llm, context=96), REQUESTS) == expected
    assert len(reads) > 7


def test_nan(llm, apart, monkeypatch):
    """An answer whose logits are NaN ends with an error that says so."""
    none = (0, float("nan"))
    monkeypatch.setattr(Rows, "best_later", lambda _, wanted: lambda: [none] * len(wanted))
    monkeypatch.setattr(Rows, "best", lambda _, wanted: [none] * len(wanted))
    engine = BatchEngine(llm, context=96)
    engine.add(0, REQUESTS[0])
    errors = []
    while engine.busy:
        errors += [one.error for one in engine.step() if one.error is not None]
    assert len(errors) == 1
    assert "logits contain NaN" in str(errors[0])
    assert type(errors[0]) is NoTokenError  # which a server tells from a mistake of who asked
    with pytest.raises(ModelError, match="logits contain NaN"):
        alone(llm, REQUESTS[0])


def test_nobody_draws_on_the_device(llm, expected, apart, monkeypatch):
    """Where no plugin draws there, logits are not copied to somebody who does."""
    monkeypatch.setattr(Drawing, "serves", lambda *_: False)
    monkeypatch.setattr(Rows, "draw", lambda *_, **__: pytest.fail("it is asked to draw"))
    assert answers(BatchEngine(llm, context=96), REQUESTS) == expected
    assert alone(llm, REQUESTS[0]) == expected[0]


def test_who_does_not_draw():
    """The CPU reference does not draw for workers, who do as it does."""
    runtime = Runtime.start(Config(plugins=["cpu_ref"]))
    assert not Drawing(runtime.device("cpu")).serves(dtypes.f32)


@pytest.mark.parametrize("seed", range(4))
def test_settings_of_rows(seed):
    """Whatever settings rows have, each gets what its own sampler draws of those settings."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (1, 9, 700)).astype(np.float32)
    rows = Rows(Tensor.from_numpy(logits), 600)
    drawing = Drawing(default_runtime().device("cpu"))
    for _ in range(4):
        odds, keys, expected = {}, {}, logits[0, :, :600].argmax(1).tolist()
        for row in rng.permutation(9)[:6].tolist():
            params = SamplingParams(
                temperature=float(rng.choice([0.5, 1.0, 2.0])),
                top_k=int(rng.choice([1, 40, 256])),
                top_p=float(rng.choice([1.0, 0.75])),
                min_p=float(rng.choice([0.0, 0.125])),
                seed=row,
            )
            sampler = Sampler(params)
            odds[row] = Odds(params.temperature, params.top_k, params.top_p, params.min_p)
            keys[row] = sampler.key
            expected[row] = sampler.sample(logits[0, row, :600], [])
        assert drawing.queue(rows, odds, keys).numpy()[0].tolist() == expected
        assert [token for token, _ in rows.best(range(9))] == expected


@pytest.mark.slow
def test_chances_of_all_tokens():
    """Of tokens that are all candidates each is drawn as often as its probability says."""
    logits = np.array([[2.0, 0.0, 1.0, -1.0, 0.5]], np.float32)
    rng = np.random.default_rng(0)
    count = 20_000
    keys = rng.integers(-(1 << 63), 1 << 63, count, np.int64, endpoint=False)
    drawn = ops.draw(
        Tensor.from_numpy(np.repeat(logits, count, 0)),
        Tensor.from_numpy(keys),
        Tensor.from_numpy(np.full(count, 0.8, np.float32)),
    ).numpy()
    shares = np.exp(logits[0] / 0.8) / np.exp(logits[0] / 0.8).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / count, shares, atol=0.015)
