"""What the host draws tokens of many answers from: the likeliest, or all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batches import answers

from propolis import Tensor
from propolis import ops
from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import OutOfMemoryError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.answer import draw_together
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.drawing import Drawing
from propolis_workers.llm.generation import Generation
from propolis_workers.llm.rows import Likely
from propolis_workers.llm.rows import Rows
from propolis_workers.llm.sampling import Sampler


@pytest.fixture(autouse=True)
def _the_host_draws(monkeypatch):
    """No device draws."""
    monkeypatch.setattr(Drawing, "serves", lambda *_: False)


def request(prompt, tokens, **params) -> Request:
    """What somebody wants."""
    return Request(prompt=prompt, params=SamplingParams(**params), max_tokens=tokens)


def alone(llm, wanted: Request) -> list[int]:
    """The answer on an engine of one sequence."""
    generation = Generation(
        llm.engine(96),
        llm.tokenizer,
        wanted.prompt,
        params=wanted.params,
        max_tokens=wanted.max_tokens,
    )
    "".join(generation)
    return generation.finish.ids


@pytest.mark.slow
def test_few_rows_are_copied_where_the_likeliest_nearly_always_do(llm, monkeypatch):
    """Who draws from all tokens seldom reads all of them; who tells of them always does."""
    wanted = [
        request([1, 2, number], 24, temperature=1.0, top_p=0.97, seed=number) for number in range(6)
    ]
    wanted.append(request([9, 9], 24))
    wanted.append(request([9, 8], 24, temperature=0.8, top_p=0.9, seed=1))
    expected = [alone(llm, one) for one in wanted]
    copied, every = [], Rows.all
    monkeypatch.setattr(
        Rows, "all", lambda self, rows: copied.append(len(rows)) or every(self, rows)
    )
    assert answers(BatchEngine(llm, context=96), wanted) == expected
    assert sum(copied) < 24
    del copied[:]
    told = replace(request([5, 5], 24, temperature=1.0, top_p=0.97, seed=3), logprobs=2)
    answers(BatchEngine(llm, context=96), [*wanted, told])
    assert 24 <= sum(copied) < 48


def test_masses_of_rows():
    """How much all tokens of a row weigh at its temperature; None where nobody asks for it."""
    logits = np.random.default_rng(0).normal(0, 3, (1, 4, 700)).astype(np.float32)
    temperatures = [1.0, 0.4, 0.0, 1.7]
    found = Rows(Tensor.from_numpy(logits), 600).top([0, 1, 2, 3], 256, temperatures)
    for row, temperature, one in zip(logits[0, :, :600], temperatures, found, strict=True):
        order = np.argsort(-row, kind="stable")[:256]
        assert (one.ids == order).all()
        assert (one.logits == row[order]).all()
        assert (one.row()[:600] == row).all()
        if not temperature:
            assert one.mass is None
            continue
        weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
        assert one.mass == pytest.approx(weights.sum(), rel=1e-5)


class Own:
    """As much of an answer as draws."""

    def __init__(self, params):
        self._sampler = Sampler(params)


@pytest.mark.parametrize("seed", range(10))
def test_together_as_alone(seed):
    """Whatever the others' settings, a row's token is that of its own sampler, or is not known."""
    rng = np.random.default_rng(seed)
    rows, width = 40, 256
    logits = rng.normal(0, rng.choice([0.2, 3.0]), (rows, width)).astype(np.float32).round(2)
    logits = -np.sort(-logits, 1)
    ids = np.argsort(rng.random((rows, 5000)), 1)[:, :width]
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.01, 0.7, 1.0, 2.0])),
            top_k=int(rng.choice([0, 0, 1, 40, 256])),
            top_p=float(rng.choice([1.0, 0.9, 0.2])),
            min_p=float(rng.choice([0.0, 0.0, 0.1])),
            seed=number,
        )
        for number in range(rows)
    ]
    masses = [
        None if one.top_k else float(np.exp((row[:200] - row[0]) / one.temperature).sum()) * 1.2
        for one, row in zip(params, logits.astype(np.float64), strict=True)
    ]
    logits[3, 2], logits[4], logits[5, 0], logits[6, 7:] = np.nan, -np.inf, np.inf, -np.inf
    masses[7] = float("inf")
    likely = list(map(Likely, logits, ids, masses, [None] * rows))
    answers = [Own(one) for one in params]
    drawn = draw_together(answers, likely)
    assert drawn == draw_together(answers, likely)  # none of their keys is used
    assert [drawn[row] for row in (3, 4, 5)] == [None] * 3
    assert params[7].top_k or drawn[7] is None
    for row, token in enumerate(drawn):
        if row not in (3, 4, 5):
            own = Sampler(params[row])
            assert token == own.sample_among(logits[row], ids[row], masses[row])
    assert sum(token is not None for token in drawn) > rows / 2
    assert draw_together([], []) == []


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("top_k", [1, 40])
def test_together_beside_one_that_cannot(odd, top_k):
    """Of rows that all have a few candidates, beside one whose logits are none."""
    rng = np.random.default_rng(top_k)
    logits = -np.sort(-rng.normal(0, 3, (3, 256)).astype(np.float32), 1)
    logits[0, 0] = odd
    ids = np.stack([rng.permutation(5000)[:256] for _ in range(3)])
    params = [SamplingParams(temperature=0.8, top_k=n, seed=n) for n in (0, top_k, top_k)]
    likely = list(map(Likely, logits, ids, [3.0, None, None], [None] * 3))
    drawn = draw_together([Own(one) for one in params], likely)
    assert drawn[0] is None
    for row in (1, 2):
        own = Sampler(params[row]).sample_among(logits[row, :top_k], ids[row, :top_k])
        assert drawn[row] == own


@pytest.mark.parametrize("op", ["topk", "div", "softmax"])
def test_no_memory_to_weigh_all_tokens(llm, monkeypatch, op):
    """Where a device has none for their shares, answers are the same: all tokens are looked at."""
    wanted = [request([1, 2, n], 12, temperature=0.8, top_p=0.9, seed=n) for n in range(3)]
    expected = [alone(llm, one) for one in wanted]
    asked = []

    def full(*_):
        asked.append(op)
        raise OutOfMemoryError("0 bytes are free")

    monkeypatch.setattr(ops, op, full)
    engine = BatchEngine(llm, context=96)
    for key, one in enumerate(wanted):
        engine.add(key, one)
    found, steps = {}, 0
    while engine.busy:
        found |= {one.key: one.finish for one in engine.step() if one.finish is not None}
        steps += 1
    assert asked
    assert [found[key].ids for key in range(3)] == expected
    assert steps <= 13  # none was computed again


@pytest.mark.parametrize("times", [1, 2])
def test_all_logits_cannot_be_read(llm, monkeypatch, times):
    """
    A step of which they cannot be is computed again, without those who have their tokens.

    Whose cannot be read twice ends with the error. No token of anybody is drawn twice or lost.
    """
    how = {"temperature": 9.0, "top_p": 0.9999}
    wanted = [request([1, 2, number], 24, **how, seed=number) for number in range(6)]
    expected = [alone(llm, one) for one in wanted]
    engine = BatchEngine(llm, context=96)
    fails, every = [DeviceError("rocm:0: it fell over")] * times, Rows.all

    def read(self, rows):
        if len(rows) == 1 and fails:
            raise fails.pop()
        return every(self, rows)

    monkeypatch.setattr(Rows, "all", read)
    for key, one in enumerate(wanted):
        engine.add(key, one)
    tokens, errors = {key: [] for key in range(6)}, []
    while engine.busy:
        for drawn in engine.step():
            if drawn.error is not None:
                errors.append(drawn.key)
            else:
                tokens[drawn.key].append(drawn.token)
    assert not fails
    assert len(errors) == times - 1
    for key in set(range(6)) - set(errors):
        assert tokens[key] == expected[key]


def test_a_device_that_is_lost_is_no_answers_error(llm, monkeypatch):
    """Where the logits of all cannot be read as the device is gone, the step says so."""

    def gone(*_):
        raise DeviceLostError("rocm:0: it is gone")

    wanted = [request([1, 2, key], 24, temperature=9.0, seed=key) for key in range(6)]
    monkeypatch.setattr(Rows, "all", gone)
    with pytest.raises(DeviceLostError):
        answers(BatchEngine(llm, context=96), wanted)


def test_a_nan_is_found_among_unlikely_tokens():
    """A NaN that is not among the likeliest is an error as it is where all are read."""
    logits = np.zeros((1, 2, 50), np.float32)
    logits[0, 1, 40] = np.nan
    fine, bad = Rows(Tensor.from_numpy(logits), 50).top([0, 1], 5, [1.0, 1.0])
    assert not np.isnan(fine.logits).any()
    assert np.isnan(bad.logits).all()
