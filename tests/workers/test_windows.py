"""Layers with a window keep no more than that, and nothing that anybody computes changes by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_families import FAMILIES
from tiny_families import IDS
from tiny_families import PROMPT
from tiny_families import Truth
from tiny_families import network
from tiny_families import write_folder

from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis.errors import ModelError
from propolis_workers.llm import LLM
from propolis_workers.llm import chunks
from propolis_workers.llm import engine as engine_module
from propolis_workers.llm import kv_cache
from propolis_workers.llm import memory
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.config import Rope
from propolis_workers.llm.config import alternating
from propolis_workers.llm.conversation import Conversation
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.kv_cache import KVCache
from propolis_workers.llm.memory import rows_of
from propolis_workers.llm.memory import sequence_bytes
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.weights import SafetensorsFolder


WINDOWED = ["mistral", "qwen2-window", "gemma2", "gemma3", "phi3", "starcoder2", "gpt_oss"]
RNG = np.random.default_rng(5)
LONG = [int(i) for i in RNG.integers(0, 90, 300)]


@pytest.fixture
def small(monkeypatch):
    """Rings of a few pages: chunks of 8 tokens, pages of 4."""
    for module in (memory, kv_cache, chunks, engine_module):
        monkeypatch.setattr(module, "CHUNK", 8)
    for module in (memory, kv_cache):
        monkeypatch.setattr(module, "PAGE", 4)


def model_of(name, path):
    """The network of a family, for texts as long as the tests have."""
    truth = Truth.read(name)
    truth = replace(truth, config={**truth.config, "max_position_embeddings": 320})
    source = SafetensorsFolder.open(write_folder(path / "m", truth))
    return build(source, read_config(source), default_runtime().device("cpu"))


def unlimited(model, capacity, monkeypatch):
    """An engine whose layers keep all tokens."""
    with monkeypatch.context() as patched:
        patched.setattr(kv_cache, "rows_of", lambda _, capacity: capacity)
        return Engine(model, capacity)


def close(ours, theirs):
    """Whether logits are the same but for the order of sums."""
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


def test_every_family_with_windows_is_here(tmp_path):
    """The list above is of all families that have a layer with a window."""
    found = {name for name in FAMILIES if any(model_of(name, tmp_path / name).config.windows)}
    assert found == set(WINDOWED)


@pytest.mark.parametrize("name", WINDOWED)
def test_the_same_logits(name, tmp_path, small, monkeypatch):
    """Rings that wrap many times give the logits of the unlimited cache: prompts and steps."""
    model = model_of(name, tmp_path)
    engine, whole = Engine(model, 300), unlimited(model, 300, monkeypatch)
    assert engine.nbytes < whole.nbytes
    close(engine.logits_of(LONG[:150]), whole.logits_of(LONG[:150]))
    for token in LONG[150:230]:  # one of these is captured, all others replayed
        close(engine.decode(token), whole.decode(token))
    close(engine.prefill(LONG[230:265]), whole.prefill(LONG[230:265]))
    for token in LONG[265:300]:
        close(engine.decode(token), whole.decode(token))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [dtypes.f16, dtypes.q8_0])
def test_kept_otherwise(kept, tmp_path, small, monkeypatch):
    """So they do with keys and values in fewer bits, but for what other sums round to."""
    model = model_of("gemma3", tmp_path)
    model.config = replace(model.config, kv_dtype=kept)
    engine, whole = Engine(model, 300), unlimited(model, 300, monkeypatch)
    assert engine.nbytes < whole.nbytes
    logits = [
        np.concatenate([one.logits_of(LONG[:150]), [one.decode(token) for token in LONG[150:200]]])
        for one in (engine, whole)
    ]
    assert ((logits[0] - logits[1]) ** 2).mean() <= 1e-6 * (logits[1] ** 2).mean()


@pytest.mark.parametrize("name", WINDOWED)
def test_the_truth(name, tmp_path, small):
    """They are transformers' too."""
    truth = Truth.read(name).logits
    engine = Engine(network(name, "folder", tmp_path), len(IDS))
    ours = [engine.logits_of(IDS[:PROMPT]), [engine.decode(token) for token in IDS[PROMPT:]]]
    ours = np.concatenate(ours)
    assert ((ours - truth) ** 2).mean() <= 1e-9 * (truth**2).mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "gemma3"])
@pytest.mark.parametrize("length", [0, 5, 60, 88, 90, 96, 99, 100, 120])
def test_cut_and_gone_on_with(name, length, tmp_path, small):
    """A sequence cut where it says that it can be goes on as one that never was longer."""
    model = model_of(name, tmp_path)
    engine, fresh = Engine(model, 300), Engine(model, 300)
    engine.prefill(LONG[:100])
    if not engine.keeps(length):
        assert 0 < length < 100 - 8
        with pytest.raises(ModelError, match=f"cut to {length} of its 100 tokens: .* cut it to 0"):
            engine.truncate(length)
        assert engine.position == 100
        close(engine.decode(7), _after(fresh, [*LONG[:100], 7]))
        return
    engine.truncate(length)
    assert engine.position == min(length, 100)
    tokens = [*LONG[: engine.position], *LONG[120:150]]
    close(engine.prefill(LONG[120:150]), _after(fresh, tokens))
    close(engine.decode(3), fresh.decode(3))


def _after(engine, tokens):
    engine.truncate(0)
    return engine.prefill(tokens)


def test_what_is_kept_shrinks_only_by_what_is_written(tmp_path, small):
    """A cut does not bring back what was written over: what is kept stays as it was."""
    engine = Engine(model_of("mistral", tmp_path), 300)
    ring = rows_of(9, 300)
    assert ring == 20
    engine.prefill(LONG[:ring])
    assert all(engine.keeps(length) for length in range(ring + 1))  # nothing was written over
    engine.prefill(LONG[ring:100])
    kept = {length for length in range(101) if engine.keeps(length)}
    assert kept == {0, *range(100 - ring + 9 - 1, 101)}
    engine.truncate(90)
    assert {length for length in range(91) if engine.keeps(length)} == {n for n in kept if n <= 90}
    engine.prefill(LONG[90:92])
    assert not engine.keeps(87)
    engine.truncate(0)
    engine.prefill(LONG[:5])
    assert all(engine.keeps(length) for length in range(6))
    assert engine.begin(300)
    engine.prefill(LONG[:5])
    assert all(engine.keeps(length) for length in range(6))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_steps_ahead(seed, tmp_path, small, monkeypatch, queue):
    """Steps that are queued ahead of what is asked for, and cuts, leave a ring as it should be."""
    rng = np.random.default_rng(seed)
    model = model_of(["gemma3", "mistral", "gpt_oss", "phi3"][seed], tmp_path)
    engine, whole = Engine(model, 300), unlimited(model, 300, monkeypatch)
    whole._queues = False
    token, size = 3, model.config.vocab_size
    for number in range(160):
        if number % 40 == 30:
            length = engine.position - int(rng.integers(0, 6))
            assert engine.keeps(length)
            engine.truncate(length)
            whole.truncate(length)
        ours, theirs = (one.decode_likeliest(token, size) for one in (engine, whole))
        assert ours[0] == theirs[0]
        close(ours[1], theirs[1])
        token = ours[0] if rng.random() < 0.7 else int(rng.integers(0, size))
    assert engine._cache._rings
    assert queue


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_any_cuts(seed, tmp_path, small, monkeypatch):
    """Prompts, tokens and cuts in any order: the logits of the unlimited cache."""
    rng = np.random.default_rng(seed)
    model = model_of(["gemma3", "mistral", "gpt_oss", "phi3"][seed], tmp_path)
    engine, whole = Engine(model, 300), unlimited(model, 300, monkeypatch)
    refused = 0
    for _ in range(60):
        if engine.position > 250 or rng.random() < 0.3:
            length = max(0, engine.position - int(rng.integers(0, 20)))
            if engine.position > 250 or not engine.keeps(length):
                refused, length = refused + 1, 0
            engine.truncate(length)
            whole.truncate(length)
        tokens = [int(i) for i in rng.integers(0, 90, rng.integers(1, 30))]
        if rng.random() < 0.5:
            close(engine.prefill(tokens), whole.prefill(tokens))
        else:
            for token in tokens[:5]:
                close(engine.decode(token), whole.decode(token))
    assert refused > 0


def test_several_sequences(tmp_path, small):
    """Sequences of a batch have rings of their own."""
    model = model_of("gemma3", tmp_path)
    cache = KVCache(model.config, model.device, 200, batch=2)
    rope, rows = model.rope.reserve(200), np.array([LONG[:96], LONG[100:196]])
    for start in range(0, 96, 8):
        ids = Tensor.from_numpy(rows[:, start : start + 8].astype(np.int64), model.device)
        at = np.arange(start, start + 8, dtype=np.int32)[None].repeat(2, 0)
        cache.expect(start, start + 8)
        logits = model(ids, Tensor.from_numpy(at, model.device), rope, cache).numpy()
    for row, ours in zip(rows, logits, strict=True):
        close(ours[0], Engine(model, 200).prefill(row.tolist()))


def test_too_many_at_once(tmp_path, small):
    """More tokens than a ring has room for are refused: they would write over each other."""
    model = model_of("mistral", tmp_path)
    cache = KVCache(model.config, model.device, 200)
    ids = Tensor.from_numpy(np.zeros((1, 9), np.int64), model.device)
    at = Tensor.from_numpy(np.arange(9, dtype=np.int32)[None], model.device)
    cache.expect(0, 9)
    with pytest.raises(ModelError, match="9 tokens at once; supported: up to 8"):
        model(ids, at, model.rope.reserve(200), cache)


def test_conversation(tiny, tmp_path, small):
    """A conversation that goes back to where windows have moved on from computes it again."""
    llm = LLM.load(tiny.gguf(tmp_path / "m.gguf", metadata={"llama.attention.sliding_window": 5}))
    assert llm.config.windows == (5,) * llm.config.layers
    talk = Conversation(llm, system="be")

    def goes_on(text, **options):
        expected = [*talk.messages, {"role": "user", "content": text}]
        turn = talk.say(text, **options)
        "".join(turn)
        alone = llm.chat(expected, **options)
        "".join(alone)
        assert alone.finish.ids == turn.finish.ids
        return turn.finish.prompt_tokens, alone.finish.prompt_tokens

    goes_on("a", max_tokens=3)
    own, whole = goes_on("on", max_tokens=30)
    assert own < whole  # what was said just now is there still
    assert talk._engine._cache._rings
    talk.reset()
    own, whole = goes_on("c", max_tokens=30)
    assert own == whole  # of the system message the windows are gone
    turn = talk.say("ll", max_tokens=30)
    next(iter(turn))
    turn.stop()
    goes_on("on", max_tokens=3)


def gemma3_shaped(context: int) -> ModelConfig:
    """The numbers of Gemma 3's 4B model, but for its vocabulary."""
    return ModelConfig(
        "gemma3",
        vocab_size=256,
        width=2560,
        ffn_width=10_240,
        layers=34,
        heads=8,
        kv_heads=4,
        head_dim=256,
        norm_eps=1e-6,
        context_length=context,
        ropes=(Rope(256), Rope(256)),
        windows=tuple(alternating(34, 6, 1024)),
    )


def test_memory():
    """Of 8192 tokens 29 layers of 34 keep 1536, and the estimate counts the same."""
    config, device = gemma3_shaped(131_072), default_runtime().device("cpu")
    windowed = KVCache(config, device, 8192).nbytes
    plain = KVCache(replace(config, windows=()), device, 8192).nbytes
    token = 2 * 4 * 256 * 4
    assert plain == 34 * 8192 * token
    assert windowed == (5 * 8192 + 29 * 1536) * token
    less = sequence_bytes(replace(config, windows=()), 8192) - sequence_bytes(config, 8192)
    assert less == plain - windowed


def test_short_sequences_cost_what_they_did():
    """A sequence shorter than a ring keeps its tokens and no more, in one piece."""
    config, device = gemma3_shaped(131_072), default_runtime().device("cpu")
    for capacity in (1, 100, 1536):
        plain = KVCache(replace(config, windows=()), device, capacity)
        cache = KVCache(config, device, capacity)
        assert (cache.nbytes, cache._rings) == (plain.nbytes, {})
