"""How likely a prompt's tokens are, told by the engine of many sequences."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from propolis.errors import DeviceError
from propolis.errors import ModelError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.memory import SCORED
from propolis_workers.llm.rows import Rows


@pytest.fixture(autouse=True, params=["waits", "queues"])
def _device(request):
    """Steps are waited for, as on the CPU; or queued ahead, as on a device with a queue."""
    if request.param == "queues":
        request.getfixturevalue("queue")


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """So many tokens."""
    return np.random.default_rng(seed).integers(1, 250, length).tolist()


def scored(length: int, top: int = 3, seed: int = 0) -> Request:
    """Whoever wants to know how likely his prompt is, and two more tokens."""
    params = SamplingParams()
    return Request(prompt=prompt_of(length, seed), params=params, max_tokens=2, prompt_logprobs=top)


def expected(llm, ids: list[int]) -> np.ndarray:
    """(tokens - 1, vocabulary): in float64, of the logits of one token after another."""
    sequence, rows = llm.engine(len(ids) + 1), []
    for place in range(1, len(ids)):
        sequence.truncate(0)
        rows.append(sequence.prefill(ids[:place])[: llm.tokenizer.vocab_size])
    logits = np.array(rows, np.float64).reshape(len(rows), llm.tokenizer.vocab_size)
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def run(engine: BatchEngine, requests: dict[int, Request]) -> dict[int, list]:
    """What was told, by key."""
    told: dict[int, list] = {key: [] for key in requests}
    for key, request in requests.items():
        engine.add(key, request)
    while engine.busy:
        for one in engine.step():
            assert one.error is None
            told[one.key].append(one)
    return told


def tokens(told: list) -> list:
    """What was told with a token, which comes after all that is known of the prompt."""
    drawn = [one for one in told if one.token is not None]
    assert told[len(told) - len(drawn) :] == drawn
    assert all(one.prompt is None for one in drawn)
    return drawn


def expect_right(llm, request: Request, told: list) -> None:
    """The probabilities of the prompt's tokens are told once, in pieces."""
    truth = expected(llm, request.prompt)
    pieces = told[: len(told) - len(tokens(told))]
    assert all(0 < len(one.prompt) <= SCORED for one in pieces)
    known = [likely for one in pieces for likely in one.prompt]
    assert len(known) == len(request.prompt) - 1
    for row, token, likely in zip(truth, request.prompt[1:], known, strict=True):
        np.testing.assert_allclose(likely.own, row[token], atol=2e-4)
        likeliest = np.sort(row)[::-1][: request.prompt_logprobs]
        np.testing.assert_allclose([value for _, value in likely.top], likeliest, atol=2e-4)
        np.testing.assert_allclose([row[i] for i, _ in likely.top], likeliest, atol=2e-4)


@pytest.mark.parametrize("length", [1, 2, SCORED, SCORED + 1, 93])
def test_a_prompt_in_steps(llm, length):
    """Of every length, in however many steps: all is told before the first token."""
    request = scored(length)
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    told = run(engine, {0: request})[0]
    expect_right(llm, request, told)
    assert len(tokens(told)) == 2


def test_among_others(llm):
    """Beside prompts and answers that want none, which are the same as without it."""
    others = {
        key: replace(scored(length, seed=key), prompt_logprobs=None, max_tokens=12)
        for key, length in ((1, 5), (2, 80), (3, 33))
    }
    wanted = {key: scored(length, seed=key) for key, length in ((4, 70), (5, 92), (6, 3))}
    without = run(BatchEngine(llm, context=96, most=8, tokens=2048, budget=32), others)
    told = run(BatchEngine(llm, context=96, most=8, tokens=2048, budget=32), others | wanted)
    for key, request in wanted.items():
        expect_right(llm, request, told[key])
    for key in others:
        assert [one.token for one in told[key]] == [one.token for one in without[key]]


def test_a_prompt_that_was_there(llm):
    """A prompt in the cache is computed again; whoever wants no probabilities finds it there."""
    request = scored(90)
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    for again in range(2):
        told = run(engine, {again: request})[again]
        expect_right(llm, request, told)
        assert told[-1].finish.cached_tokens == 0
    (_, second) = run(engine, {2: replace(request, prompt_logprobs=None)})[2]
    assert second.finish.cached_tokens == 80


def test_whoever_gives_his_blocks_back(llm):
    """A prompt that has to begin anew, for want of blocks, is told of once, and rightly."""
    others = {key: replace(scored(10, seed=key), max_tokens=70) for key in range(2)}
    request = scored(80, seed=2)
    engine = BatchEngine(llm, context=96, most=4, tokens=160, budget=4)
    told = run(engine, {**others, 2: request})
    assert engine.scheduler.preempted
    expect_right(llm, request, told[2])


def test_a_step_that_fails(llm, monkeypatch):
    """What was read before a step failed is not told twice."""
    scores, calls = Rows.scores, []

    def failing(rows, *args):
        calls.append(args)
        if len(calls) == 2:
            msg = "it fails"
            raise DeviceError(msg)
        return scores(rows, *args)

    monkeypatch.setattr(Rows, "scores", failing)
    request = scored(90)
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    told = run(engine, {0: request})[0]
    assert len(calls) == 3
    expect_right(llm, request, told)


def test_none_of_the_likeliest(llm):
    """Of none of the likeliest the tokens' own are told; of more than there are, all are."""
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    for top, count in ((0, 0), (10**6, llm.tokenizer.vocab_size)):
        first, *_ = run(engine, {0: scored(5, top)})[0]
        assert [len(one.top) for one in first.prompt] == [count] * 4


def test_an_answer_of_one_token(llm):
    """The prompt is told of where the first token is the last one too."""
    request = replace(scored(70), max_tokens=1)
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    told = run(engine, {0: request})[0]
    assert [one.finish is not None for one in tokens(told)] == [True]
    expect_right(llm, request, told)


def test_who_comes_behind(llm):
    """Whoever wants no probabilities does not wait for those who do, whose rows are few a step."""
    engine = BatchEngine(llm, context=96, most=8, tokens=2048, budget=512)
    for key in range(3):
        engine.add(key, scored(90, seed=key))
    engine.add("chat", replace(scored(3, seed=9), prompt_logprobs=None))
    assert "chat" in {one.key for one in engine.step()}


def test_a_token_that_is_none(llm, monkeypatch):
    """An id of the weights' padding is refused: nobody knows how likely it is."""
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    tokenizer = SimpleNamespace(vocab_size=6)
    monkeypatch.setattr(engine, "_llm", SimpleNamespace(tokenizer=tokenizer))
    with pytest.raises(ModelError, match="token 7 of the prompt is none of the tokenizer's 6"):
        engine.add(1, replace(scored(2), prompt=[5, 7]))
    assert not engine.busy


def test_logits_that_are_no_numbers(llm, monkeypatch):
    """A NaN in the middle of a prompt ends that answer, saying what to suspect, and no other."""
    scores = Rows.scores

    def spoiled(rows, wanted, *args):
        own, *rest = scores(rows, wanted, *args)
        if len(wanted) == 8:
            own = np.where(np.arange(8) == 3, np.float32(np.nan), own)
        return own, *rest

    monkeypatch.setattr(Rows, "scores", spoiled)
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    engine.add("bad", scored(9))
    engine.add("good", scored(12, seed=1))
    told = []
    while engine.busy:
        told += engine.step()
    bad = [one for one in told if one.key == "bad"]
    assert [one.prompt for one in bad] == [None]
    assert "NaN" in str(bad[0].error)
    expect_right(llm, scored(12, seed=1), [one for one in told if one.key == "good"])


def test_one_that_is_cancelled(llm):
    """Whoever goes away in the middle leaves nothing behind."""
    engine = BatchEngine(llm, context=96, most=4, tokens=1024)
    engine.add(0, scored(90))
    engine.step()
    engine.cancel(0)
    assert not engine.busy
    request = scored(9, seed=1)
    expect_right(llm, request, run(engine, {0: request})[0])
