from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.llm.sampling import Sampler
from propolis_workers.llm.sampling import SamplingParams


# With which the chance that none of the likeliest is drawn is all but 1 (found by trying).
_KEY = 535873706636


def truth(logits, history, p: SamplingParams) -> dict[int, float]:
    """Compute each token's probability from the definitions, in plain Python."""
    scores = [float(x) for x in logits]
    recent = history[len(history) - p.repeat_last_n :] if p.repeat_last_n > 0 else history
    for token in set() if p.repeat_last_n == 0 else set(recent):
        x = scores[token]
        scores[token] = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
    scores = [x / p.temperature for x in scores]
    ids = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    ids = ids[: p.top_k] if p.top_k else ids

    def probabilities(kept):
        top = max(scores[i] for i in kept)
        total = math.fsum(math.exp(scores[i] - top) for i in kept)
        return {i: math.exp(scores[i] - top) / total for i in kept}

    shares = probabilities(ids)
    if p.top_p < 1:
        kept, mass = [], 0.0
        for i in ids:
            kept.append(i)
            mass += shares[i]
            if mass >= p.top_p:
                break
        ids, shares = kept, probabilities(kept)
    best = max(shares.values())
    return probabilities([i for i in ids if shares[i] >= p.min_p * best])


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 5},
    {"top_p": 0.7},
    {"top_p": 0.05},
    {"min_p": 0.2},
    {"top_k": 12, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.5},
    {"repetition_penalty": 3.0, "repeat_last_n": 2},
    {"repetition_penalty": 0.5, "repeat_last_n": -1},
    {"repetition_penalty": 0.5, "repeat_last_n": 0},
    {"top_k": 100, "top_p": 0.999},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_distribution(setting):
    """Draws follow the distribution of the definitions (chi-square, fixed seeds)."""
    logits = np.random.default_rng(5).normal(0, 1.5, 24).astype(np.float32)
    history = [3, 7, 7, 20, 1]
    params = SamplingParams(**{"temperature": 1.0, "seed": 11} | setting)
    expected = truth(logits, history, params)
    sampler = Sampler(params)
    draws = 4000
    counts = Counter(sampler.sample(logits, history) for _ in range(draws))
    assert counts.keys() <= expected.keys()
    # Pool the rare tokens: chi-square needs about five expected draws a cell.
    common = {i: p for i, p in expected.items() if p * draws >= 5}
    cells = [(counts[i], p * draws) for i, p in common.items()]
    rest = 1 - sum(common.values())
    if rest * draws >= 5:
        cells.append((draws - sum(counts[i] for i in common), rest * draws))
    statistic = sum((got - want) ** 2 / want for got, want in cells)
    freedom = len(cells) - 1
    # Four standard deviations above the mean of chi-square.
    assert statistic <= freedom + 4 * math.sqrt(2 * freedom)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_candidates(data):
    """The tokens left to draw from, and their weights, are those of the definitions."""
    grid = st.integers(-12, 12).map(lambda n: n / 4)  # ties are likely
    logits = np.array(data.draw(st.lists(grid, min_size=1, max_size=40)), np.float32)
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.25, 1.0, 3.0])),
        top_k=data.draw(st.integers(0, 45)),
        top_p=data.draw(st.sampled_from([0.013, 0.317, 0.777, 0.997, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.013, 0.317])),
    )
    order, weights = Sampler(params)._candidates(logits)
    ids = range(logits.size) if order is None else order.tolist()
    shares = weights / weights.sum()
    got = {i: share for i, share in zip(ids, shares.tolist(), strict=True) if share}
    expected = truth(logits, [], params)
    assert sorted(expected) == sorted(got)
    assert all(math.isclose(expected[i], got[i], rel_tol=1e-9) for i in got)


@pytest.mark.parametrize("top_p", [0.5, 0.9999])
def test_large_vocabulary(top_p):
    """The short way through a large vocabulary, sorting only its top, changes nothing."""
    for scale in (0.01, 3.0):
        logits = np.random.default_rng(1).normal(0, scale, 20_000).astype(np.float32)
        params = SamplingParams(temperature=1.0, top_p=top_p)
        order, _ = Sampler(params)._candidates(logits)
        assert order is not None
        assert abs(len(truth(logits, [], params)) - order.size) <= 1


@pytest.mark.parametrize("seed", range(40))
def test_among_the_likeliest(seed):
    """From the likeliest that another found, or from all: the same tokens, with ties and inf."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, 400).astype(np.float32).round(seed % 3)
    if seed % 5 == 0:
        logits[rng.integers(0, 400, 3)] = np.inf
    top_k = int(rng.integers(1, 60))
    params = SamplingParams(
        temperature=float(rng.uniform(0.1, 2)),
        top_k=top_k,
        top_p=float(rng.choice([1.0, 0.9, 0.4])),
        min_p=float(rng.choice([0.0, 0.05, 0.3])),
        seed=seed,
    )
    one, other = Sampler(params), Sampler(params)
    assert one.among == top_k
    ids = np.argsort(-logits, kind="stable")[: top_k + seed % 7]
    for _ in range(20):
        assert one.sample(logits, ()) == other.sample_among(logits[ids], ids)


@pytest.mark.parametrize(
    ("params", "among"),
    [
        ({}, 1),
        ({"temperature": 1.0}, 0),
        ({"temperature": 1.0, "top_p": 0.9}, 256),
        ({"temperature": 1.0, "min_p": 0.1}, 256),
        ({"temperature": 1.0, "top_k": 300}, 0),
        ({"temperature": 1.0, "top_k": 7}, 7),
        ({"temperature": 1.0, "top_k": 7, "repetition_penalty": 1.1}, 0),
        ({"temperature": 1.0, "top_k": 7, "presence_penalty": 1.0}, 0),
        ({"logit_bias": {1: 2.0}}, 0),
    ],
)
def test_among(params, among):
    """What moves other tokens among the likeliest needs all logits."""
    assert Sampler(SamplingParams(**params)).among == among


def test_greedy():
    """Temperature 0 takes the highest logit, the lowest index of equals, and no more."""
    logits = np.array([0, 2, -1, 2], np.float32)
    assert Sampler(SamplingParams()).sample(logits, []) == 1
    penalised = SamplingParams(repetition_penalty=1.5)
    assert Sampler(penalised).sample(logits, [1]) == 3
    assert logits.tolist() == [0, 2, -1, 2]


def test_penalty_reads_the_end_of_the_history():
    """Only the last repeat_last_n tokens are penalised; -1 penalises all."""
    logits = np.array([3, 2, 1], np.float32)
    params = {"repetition_penalty": 10.0}
    assert Sampler(SamplingParams(**params, repeat_last_n=1)).sample(logits, [0, 2]) == 0
    assert Sampler(SamplingParams(**params, repeat_last_n=2)).sample(logits, [0, 2]) == 1
    assert Sampler(SamplingParams(**params, repeat_last_n=-1)).sample(logits, [0, 2]) == 1


def test_same_seed_same_tokens():
    """One seed gives one sequence; others differ."""
    logits = np.zeros(1000, np.float32)
    runs = []
    for seed in (7, 7, 8):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        runs.append([sampler.sample(logits, []) for _ in range(20)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits(temperature):
    """NaN, nothing allowed, and wrong shapes are errors, never a token."""
    sampler = Sampler(SamplingParams(temperature=temperature))
    with pytest.raises(ModelError, match="logits contain NaN"):
        sampler.sample(np.array([1, np.nan, np.inf], np.float32), [])
    with pytest.raises(ModelError, match="no token is allowed"):
        sampler.sample(np.full(4, -np.inf, np.float32), [])
    for shape in ((0,), (1, 4)):
        with pytest.raises(UsageError, match="shape"):
            sampler.sample(np.zeros(shape, np.float32), [])


def test_infinite_logits():
    """Tokens at -inf are never drawn; one at +inf always is."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=1))
    masked = np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32)
    assert {1, 3} == {sampler.sample(masked, []) for _ in range(100)}
    certain = np.array([0, np.inf, 5], np.float32)
    assert {1} == {sampler.sample(certain, []) for _ in range(10)}


def test_a_seed_bears_other_roundings():
    """
    Logits that differ by rounding draw the same token, also of a whole vocabulary.

    A place in the sum of all weights would be passed by hundreds of unlikely tokens at a time.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, 50000).astype(np.float32)
    differ = 0
    for seed in range(300):
        params = SamplingParams(temperature=1.0, seed=seed)
        noise = rng.normal(0, 1e-4, logits.size).astype(np.float32)
        drawn = {Sampler(params).sample(given, []) for given in (logits, logits + noise)}
        differ += len(drawn) > 1
    assert differ <= 4


def test_a_draw_of_few_is_that_of_all():
    """Whoever draws among candidates that others found draws what the whole vocabulary gives."""
    logits = np.random.default_rng(1).normal(0, 2, 3000).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    for seed in range(50):
        params = SamplingParams(temperature=0.9, top_k=40, seed=seed)
        among = Sampler(params).sample_among(logits[order[:64]], order[:64])
        assert among == Sampler(params).sample(logits, [])


def given_head(sampler, logits, mass=None):
    """A draw as who has found the likeliest makes it, and whether all had to be looked at."""
    if not sampler.among:
        return sampler.sample(logits, ()), True
    order = np.argsort(-logits, kind="stable")[: sampler.among]
    if sampler.weighs and mass is None:
        weights = np.exp((logits.astype(np.float64) - logits.max()) / sampler.weighs)
        mass = float(weights.sum())
    token = sampler.sample_among(logits[order], order, mass)
    return (sampler.sample(logits, ()), True) if token is None else (token, False)


@pytest.mark.parametrize("seed", range(40))
def test_from_the_head_or_from_all(seed):
    """Of a vocabulary beyond the head: the same tokens, whatever the cuts; few need all logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, rng.choice([0.1, 2, 6]), 3000).astype(np.float32).round(seed % 3 + 1)
    params = SamplingParams(
        temperature=float(rng.uniform(0.1, 2)),
        top_p=float(rng.choice([1.0, 1.0, 0.9, 0.4])),
        min_p=float(rng.choice([0.0, 0.0, 0.05, 0.3])),
        seed=seed,
    )
    one, other = Sampler(params), Sampler(params)
    for _ in range(20):
        assert one.sample(logits, ()) == given_head(other, logits)[0]


def test_all_tokens_have_their_share():
    """Where all are candidates each is drawn as often as it should be: chi-squared."""
    logits = np.zeros(800, np.float32)
    logits[::4] = 1.5
    sampler = Sampler(SamplingParams(temperature=1.0, seed=5))
    found = np.bincount([sampler.sample(logits, ()) for _ in range(8_000)], minlength=800)
    expected = np.exp(logits.astype(np.float64))
    expected *= found.sum() / expected.sum()
    chi = float(((found - expected) ** 2 / expected).sum())
    assert abs(chi - 799) < 5 * math.sqrt(2 * 799)


@pytest.mark.parametrize(("temperature", "unlikely"), [(0.8, -np.inf), (0.1, -5.2)])
def test_what_weighs_nothing_is_never_drawn(temperature, unlikely):
    """However the weights of all are rounded, and whatever chance says of those not looked at."""
    rng = np.random.default_rng(0)
    for seed in range(200):
        logits = np.full(1000, unlikely, np.float32)
        likely = rng.choice(np.arange(1, 1000), 20, replace=False)
        logits[likely] = rng.normal(40, 0.3, 20)
        sampler = Sampler(SamplingParams(temperature=temperature, seed=seed))
        sampler._keys = [_KEY]
        assert sampler.sample(logits, ()) in likely


@pytest.mark.parametrize("temperature", [5e-324, 1e-3, 1e30, 1e39, 1e300])
@pytest.mark.filterwarnings("error")
def test_temperatures_beyond_f32(temperature):
    """They draw one of the tokens that are allowed, from the head or from all."""
    logits = np.full(1000, -np.inf, np.float32)
    logits[100:900] = np.random.default_rng(0).normal(0, 3, 800)
    logits[500] = np.finfo(np.float32).min
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1))
    drawn = {sampler.sample(logits, ()) for _ in range(50)}
    assert drawn <= set(range(100, 900))
    assert (len(drawn) == 1) == (temperature < 1)
    assert sampler.among == 0 or 1e-3 < temperature < 1e30


@pytest.mark.parametrize("mass", [math.nan, math.inf])
def test_a_mass_that_is_no_number(mass):
    """Where a device could not weigh all tokens, all are looked at."""
    logits = np.random.default_rng(0).normal(0, 3, 900).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=2)
    one, other = Sampler(params), Sampler(params)
    assert given_head(one, logits, mass) == (other.sample(logits, ()), True)


def test_tiny_temperature_is_greedy():
    """A temperature near 0 neither overflows nor draws another token."""
    sampler = Sampler(SamplingParams(temperature=1e-300, seed=1))
    assert sampler.sample(np.array([1, 5, 4.999], np.float32), []) == 1


def test_history_outside_the_vocabulary():
    """A token of the history that has no logit is named."""
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    for wrong in (-1, 3):
        with pytest.raises(UsageError, match=f"token {wrong}"):
            sampler.sample(np.zeros(3, np.float32), [0, wrong])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", np.True_),
        ("top_k", np.ones(2, int)),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repeat_last_n", -2),
        ("seed", -1),
        ("seed", 0.5),
        ("logit_bias", [1]),
        ("logit_bias", None),
    ],
)
def test_parameters_are_checked(name, value):
    """A wrong parameter's message names it, what was given and what is allowed."""
    with pytest.raises(UsageError, match=rf"^{name} is .*; allowed: "):
        SamplingParams(**{name: value})


def test_parameters_of_numpy():
    """Numbers that numpy computed are those of Python: they are kept, compared and written so."""
    given = {"temperature": np.float32(0.5), "top_k": np.int64(4), "seed": np.uint8(7)}
    params = SamplingParams(**given)
    assert SamplingParams(temperature=0.5, top_k=4, seed=7) == params
    assert {float, int} == {type(getattr(params, name)) for name in given}
