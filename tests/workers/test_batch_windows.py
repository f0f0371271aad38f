"""Many sequences at once on models with windows: each gets what it gets alone, in less memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf

from propolis import default_runtime
from propolis.dispatch import DispatchTable
from propolis_workers.llm import LLM
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch import engine as engine_module
from propolis_workers.llm.batch.blocks import blocks_of_windows
from propolis_workers.llm.batch.blocks import window_blocks
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.batch.paged_cache import PagedCache
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.config import Rope
from propolis_workers.llm.config import alternating
from propolis_workers.llm.generation import Generation
from propolis_workers.llm.memory import batch_bytes


WINDOWED = ["mistral", "gemma2", "gemma3", "phi3", "starcoder2", "gpt_oss"]
CONTEXT = 160


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Blocks of 4 tokens: windows reach back a few of them."""
    monkeypatch.setattr(engine_module, "BLOCK", 4)


@pytest.fixture(autouse=True, params=["waits", "queues"])
def _device(request):
    """Steps are waited for, as on the CPU; or queued ahead, as on a device with a queue."""
    if request.param == "queues":
        request.getfixturevalue("queue")


@pytest.fixture(scope="module", params=WINDOWED)
def windowed(request, tmp_path_factory):
    """A model of each family with windows, and twelve requests, and how each goes alone."""
    llm = loaded(request.param, tmp_path_factory.mktemp("windowed"))
    requests = some(12)
    return llm, requests, [alone(llm, one) for one in requests]


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    """A model of which one layer in three sees all keys, and 32 requests."""
    llm = loaded("gemma3", tmp_path_factory.mktemp("gemma3"))
    requests = some(32, seed=1)
    return llm, requests, [alone(llm, one) for one in requests]


def loaded(name: str, path) -> LLM:
    """A family's model, for texts of the length of these."""
    truth = Truth.read(name)
    truth = replace(truth, config={**truth.config, "max_position_embeddings": CONTEXT})
    llm = LLM.load(write_gguf(path / f"{name}.gguf", FAMILIES[name], truth, tokenizer=vocabulary()))
    assert 0 < max(llm.config.windows) < 16
    return llm


def some(count: int, seed: int = 0) -> list[Request]:
    """Requests many times as long as windows, some of which begin alike, greedy and not."""
    rng = np.random.default_rng(seed)
    common = [int(rng.integers(1, 90)) for _ in range(60)]
    requests = []
    for number in range(count):
        own = [int(rng.integers(1, 90)) for _ in range(rng.integers(1, 40))]
        prompt = common[: int(rng.choice([0, 0, 16, 41, 60]))] + own
        how = {"temperature": 0.8, "top_k": 40, "seed": number} if number % 3 == 0 else {}
        params = SamplingParams(**how)
        requests.append(Request(prompt=prompt, params=params, max_tokens=int(rng.integers(1, 40))))
    return requests


def alone(llm, wanted: Request):
    """How the answer goes on the engine of one sequence, which keeps all tokens."""
    engine = llm.engine(CONTEXT)
    assert not engine._cache._rings
    generation = Generation(
        engine, llm.tokenizer, wanted.prompt, params=wanted.params, max_tokens=wanted.max_tokens
    )
    "".join(generation)
    return generation.finish


def answers(engine: BatchEngine, requests: list[Request]) -> list:
    """How the answers of all went, in order."""
    finished = {}
    for key, wanted in enumerate(requests):
        engine.add(key, wanted)
    while engine.busy:
        for drawn in engine.step():
            assert drawn.error is None
            if drawn.finish is not None:
                finished[drawn.key] = drawn.finish
    return [finished[key] for key in range(len(requests))]


def check(engine: BatchEngine, requests, expected) -> list:
    """All get what they get alone, and all blocks come back."""
    windows = engine.blocks.windows
    assert windows is not None
    got = answers(engine, requests)
    assert [one.ids for one in got] == [one.ids for one in expected]
    assert [one.stop_reason for one in got] == [one.stop_reason for one in expected]
    assert engine.blocks.taken == windows.taken == 0
    assert (engine.blocks.available, windows.available) == (engine.blocks.count, windows.count)
    return got


@pytest.mark.slow
def test_each_gets_what_it_gets_alone(windowed) -> None:
    """Of each family: tokens of each alone, twice, as the second time most is found again."""
    llm, requests, expected = windowed
    engine = BatchEngine(llm, context=CONTEXT, most=6, tokens=CONTEXT * 8, budget=24)
    assert engine.blocks.windows.count < engine.blocks.count / 2
    for _ in range(2):
        got = check(engine, requests, expected)
        assert any(one.cached_tokens for one in got)


@pytest.mark.slow
def test_kept_in_blocks(gemma3) -> None:
    """Keys and values in q8_0 have two kinds of blocks too."""
    llm, requests, _ = gemma3
    llm = LLM.load(llm.path, kv_type="q8_0")
    requests = requests[:8]
    engine = BatchEngine(llm, context=CONTEXT, most=4, tokens=CONTEXT * 8, budget=24)
    check(engine, requests, [alone(llm, one) for one in requests])


@pytest.mark.slow
@pytest.mark.parametrize("budget", [7, 512])
@pytest.mark.parametrize("most", [1, 32])
def test_thirty_two_at_once(gemma3, most, budget) -> None:
    """As many as may run, prompts in pieces or at once."""
    llm, requests, expected = gemma3
    engine = BatchEngine(llm, context=CONTEXT, most=most, tokens=CONTEXT * 32, budget=budget)
    check(engine, requests, expected)


@pytest.mark.slow
def test_room_runs_out(gemma3, monkeypatch) -> None:
    """With blocks of windows for little more than one sequence some wait."""
    llm, requests, expected = gemma3
    monkeypatch.setattr(
        engine_module,
        "blocks_of_windows",
        lambda window, _count, size, *rest: window_blocks(window, rest[-1], size) + 6,
    )
    engine = BatchEngine(llm, context=CONTEXT, most=32, tokens=CONTEXT * 32, budget=32)
    check(engine, requests, expected)
    assert engine.blocks.windows.count < 32  # one each would not do


@pytest.mark.slow
def test_blocks_of_all_tokens_run_out(gemma3) -> None:
    """In a cache for one sequence and a half too."""
    llm, requests, expected = gemma3
    engine = BatchEngine(llm, context=CONTEXT, most=16, tokens=CONTEXT * 3 // 2, budget=16)
    check(engine, requests, expected)
    assert engine.scheduler.preempted > 0


@pytest.mark.slow
def test_guesses(gemma3) -> None:
    """Guessed tokens, most of them wrong, are written where windows are, and change nothing."""
    llm, *_ = gemma3
    prompt = [5, 6, 7, 8] * 12
    few = dict.fromkeys((5, 6, 7), 90.0)
    random = SamplingParams(temperature=500.0, top_k=3, seed=3, logit_bias=few)
    requests = [
        Request(prompt=[*prompt, n], params=params, max_tokens=60)
        for n, params in ((5, random), (9, SamplingParams()), (40, SamplingParams()))
    ]
    expected = [alone(llm, one) for one in requests]
    engine = BatchEngine(llm, context=CONTEXT, most=8, tokens=CONTEXT * 8, budget=16, speculate=5)
    check(engine, requests, expected)
    assert engine.guessed > engine.taken > 0


def test_what_is_found_again(gemma3) -> None:
    """A prompt that goes on where another ended, or within a block; and one whose windows left."""
    llm, *_ = gemma3
    engine = BatchEngine(llm, context=CONTEXT, most=4, tokens=CONTEXT * 4, budget=16)
    tokens = [int(i) for i in np.random.default_rng(3).integers(1, 90, 100)]

    def run(prompt):
        wanted = Request(prompt=list(prompt), params=SamplingParams(), max_tokens=3)
        (got,) = answers(engine, [wanted])
        assert got.ids == alone(llm, wanted).ids
        return got.cached_tokens

    assert [run(tokens), run([*tokens, 1, 2]), run([*tokens[:98], 3])] == [0, 100, 98]
    engine.blocks.windows.forget()
    kept = engine.blocks.kept
    assert run([*tokens, 4, 5]) == 0  # windows are computed again
    assert engine.blocks.kept <= kept + 1  # into no other blocks of all tokens than there were
    assert run([*tokens, 6]) == 100


def test_a_context_that_windows_do_not_shorten(gemma3) -> None:
    """Where they would save nothing there is one kind of blocks, as for models without windows."""
    llm, requests, _ = gemma3
    engine = BatchEngine(llm, context=16, most=4)
    assert engine.blocks.windows is None
    assert not any(engine._cache.local)
    (got,) = answers(engine, [replace(requests[0], prompt=[1, 2, 3], max_tokens=5)])
    assert got.ids == alone(llm, replace(requests[0], prompt=[1, 2, 3], max_tokens=5)).ids


def test_models_without_windows(llm) -> None:
    """They have one kind of blocks, and a step no table more."""
    engine = BatchEngine(llm, context=96)
    assert engine.blocks.windows is None
    assert engine.steps._step(2, 2)._windows is None


def test_nothing_else_is_called(gemma3) -> None:
    """A step calls the ops that it calls with one kind of blocks, and as many of them."""
    llm, requests, _ = gemma3
    device = default_runtime().device("cpu")
    assert DispatchTable.of(device) is DispatchTable.of(llm.model.device)
    counts = []
    for tokens in (CONTEXT * 32, 16):
        engine = BatchEngine(llm, context=min(CONTEXT, tokens), most=4, tokens=tokens, budget=8)
        counts.append(engine.blocks.windows is not None)
        engine.add(0, replace(requests[1], prompt=[1, 2, 3], max_tokens=9, params=SamplingParams()))
        while engine.busy:
            engine.step()
        (_, graph, _), *_ = engine.steps.decodes.values()
        counts.append(len(graph))
    assert counts[0] is True
    assert counts[2] is False
    assert counts[1] == counts[3]


@pytest.mark.slow
def test_memory() -> None:
    """Of a cache of 8192 tokens for a model like Gemma 3's 4B; the estimate counts the same."""
    config = ModelConfig(
        "gemma3",
        vocab_size=256,
        width=2560,
        ffn_width=10_240,
        layers=34,
        heads=8,
        kv_heads=4,
        head_dim=256,
        norm_eps=1e-6,
        context_length=131_072,
        ropes=(Rope(256),),
        windows=tuple(alternating(34, 6, 1024)),
    )
    device, count = default_runtime().device("cpu"), 8192 // 16
    windows = blocks_of_windows(1024, count, 16, 8192, 64, 512)
    before = PagedCache(config, device, count + 1, 16).nbytes
    after = PagedCache(config, device, count + 1, 16, windows + 1).nbytes
    row = 16 * 2 * 4 * 256 * 4
    assert before == 34 * 513 * row
    assert after == (5 * 513 + 29 * 226) * row
    estimates = [
        batch_bytes(config, 513 * 16, 8192, 64, windows=tokens) for tokens in (None, 226 * 16)
    ]
    assert estimates[0] - estimates[1] == before - after
