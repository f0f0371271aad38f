"""Keys and values in q8_0: what it changes, what it takes, and what cannot be kept so."""

from __future__ import annotations

import gc
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vendor
from tiny_families import FAMILIES
from tiny_families import IDS
from tiny_families import PROMPT
from tiny_families import Truth
from tiny_families import network
from tiny_families import vocabulary
from tiny_families import write_folder
from tiny_families import write_gguf

from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.cli import main
from propolis.errors import UsageError
from propolis_workers.llm import LLM
from propolis_workers.llm import kv_cache
from propolis_workers.llm.batch.paged_cache import PagedCache
from propolis_workers.llm.batch.paged_cache import Placed
from propolis_workers.llm.batch.paged_cache import Step
from propolis_workers.llm.batch.scheduler import Copy
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.kv_cache import KVCache
from propolis_workers.llm.memory import sequence_bytes
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.weights import SafetensorsFolder


GOLDEN = Path(__file__).parents[1] / "data/smollm2/greedy_llamacpp_f32.json"
# Their heads are whole blocks: of keys and values alone, of windows, caps, experts and sinks.
WHOLE = ["qwen3", "gemma2", "gemma3", "qwen3_moe", "gpt_oss"]

CHILD = """
import json, sys
from propolis import Runtime
from propolis.dispatch import DispatchTable
from propolis.runtime import set_default_runtime
from propolis_workers.llm import LLM
from propolis_workers.llm.batch.engine import BatchEngine, Request
from propolis_workers.llm.session import GREEDY
runtime = Runtime.start()
set_default_runtime(runtime)
device = runtime.device("rocm:0")
told = {}
for path in sys.argv[1:]:
    llm = LLM.load(path, device=device, kv_type="q8_0")
    generation = llm.complete("HELLO", max_tokens=12)
    "".join(generation)
    told[path] = [generation.finish.ids]
    engine = BatchEngine(llm, context=64, most=2)
    engine.add(0, Request(prompt=llm.prompts.text("HELLO"), params=GREEDY, max_tokens=12))
    drawn = []
    while engine.busy:
        drawn += [one.token for one in engine.step() if one.token is not None]
    told[path].append(drawn)
told["ops"] = sorted(op for op in DispatchTable.of(device).placement.as_dict()["ops"])
told["placement"] = list(DispatchTable.of(device).placement.lines())
print(json.dumps(told))
"""


def nmse(ours: np.ndarray, truth: np.ndarray) -> float:
    """The error's mean square, as a share of the truth's."""
    return float(((ours - truth) ** 2).mean() / (truth**2).mean())


def decoded(model) -> tuple[np.ndarray, Engine]:
    """Logits of the tokens after the prompt, one by one, and who computed them."""
    engine = Engine(model, len(IDS))
    engine.prefill(IDS[:PROMPT])
    return np.array([engine.decode(token) for token in IDS[PROMPT:]]), engine


@pytest.mark.parametrize("name", WHOLE)
def test_logits(name, tmp_path):
    """Logits are off by what numbers of 8 bits are rounded by, and no more."""
    model = network(name, "folder", tmp_path)
    _, wide = decoded(model)
    model.config = replace(model.config, kv_dtype=dtypes.q8_0)
    logits, engine = decoded(model)
    assert engine.nbytes * 128 == wide.nbytes * 34
    # Of half of the tokens, at least: one whose router takes another expert is far off.
    truth = Truth.read(name).logits[PROMPT:]
    errors = ((logits - truth) ** 2).mean(1) / (truth**2).mean()
    assert 0 < np.median(errors) <= (5e-4 if name == "gpt_oss" else 3e-5)


@pytest.mark.parametrize("name", WHOLE)
def test_paged(name, tmp_path):
    """Sequences of a paged cache, in one step and a token each, have the logits of one alone."""
    model = network(name, "folder", tmp_path)
    model.config = replace(model.config, kv_dtype=dtypes.q8_0)
    alone = Engine(model, len(IDS)).logits_of(IDS)
    lengths, size, each = (7, 40, 19), 8, 6
    cache = PagedCache(model.config, model.device, 1 + each * len(lengths), size)
    blocks = [[1 + i * each + j for j in range(each)] for i in range(len(lengths))]
    rope = model.rope.reserve(len(IDS))
    step = Step(cache, len(lengths), sum(lengths), each)
    step.set([Placed(IDS[:n], 0, own) for n, own in zip(lengths, blocks, strict=True)])
    logits = model(step.ids, step.positions, rope, step).numpy()[0]
    assert nmse(logits, np.concatenate([alone[:n] for n in lengths])) <= 1e-5
    one = Step(cache, len(lengths), len(lengths), each)
    one.set([Placed(IDS[n : n + 1], n, own) for n, own in zip(lengths, blocks, strict=True)])
    logits = model(one.ids, one.positions, rope, one).numpy()[0]
    assert nmse(logits, alone[list(lengths)]) <= 1e-5
    source, target = blocks[1][0], blocks[0][-1]
    cache.copy(Copy(source, target, size))
    for rows in (rows for pair in cache.layers for rows in pair):
        own = [rows.narrow(0, block * size, size).numpy() for block in (source, target)]
        np.testing.assert_array_equal(*own)


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_windows(name, tmp_path, monkeypatch):
    """Layers that keep no more than their window keep it in blocks too, alone and in pages."""
    truth = Truth.read(name)
    long = replace(truth, config=truth.config | {"max_position_embeddings": 1024})
    source = SafetensorsFolder.open(write_folder(tmp_path / "m", long))
    config = replace(read_config(source), kv_dtype=dtypes.q8_0)
    model = build(source, config, default_runtime().cpu)
    ids = [IDS[i % len(IDS)] for i in range(700)]
    engine = Engine(model, 800)
    monkeypatch.setattr(kv_cache, "rows_of", lambda _, capacity: capacity)
    every = Engine(model, 800)
    assert engine.nbytes < every.nbytes
    for one in (engine, every):
        one.prefill(ids)
    for token in IDS:
        assert nmse(engine.decode(token), every.decode(token)) <= 1e-5
    cache = PagedCache(model.config, model.device, 4, 8, windows=3)
    kept = [
        rows
        for pair, local in zip(cache.layers, cache.local, strict=True)
        if local
        for rows in pair
    ]
    assert kept
    for rows in kept:
        assert rows.dtype is dtypes.q8_0
        assert not ops.dequantize(rows.narrow(0, 0, 8)).numpy().any()


def test_short_convolutions(tmp_path):
    """Rows that a convolution reads stay numbers; the layers that attend have blocks."""
    truth = Truth.read("lfm2")
    shapes = {
        name: (32,) if "layernorm" in name and shape == (16,) else shape
        for name, shape in truth.shapes.items()
    }
    config = truth.config | {"num_attention_heads": 2, "num_key_value_heads": 1}
    folder = write_folder(tmp_path / "m", replace(truth, config=config, shapes=shapes))
    source = SafetensorsFolder.open(folder)
    model = build(source, read_config(source), default_runtime().cpu)
    wide, _ = decoded(model)
    model.config = replace(model.config, kv_dtype=dtypes.q8_0)
    logits, _ = decoded(model)
    assert 0 < nmse(logits, wide) <= 2e-3
    convolved = model.config.convolved
    assert {True, False} == set(convolved)
    cache = KVCache(model.config, model.device, 64)
    for layer, own in enumerate(cache._layers):
        kept = dtypes.f32 if convolved[layer] else dtypes.q8_0
        assert {kept} == {rows.dtype for rows in own}


@pytest.mark.parametrize("name", ["llama", "deepseek"])
def test_heads_that_are_no_whole_blocks(name, tmp_path):
    """They are refused before weights are read: the layer, its heads, and what is supported."""
    truth = Truth.read(name)
    path = write_gguf(tmp_path / "m.gguf", FAMILIES[name], truth, tokenizer=vocabulary())
    dim = {"llama": 16, "deepseek": 24}[name]
    message = (
        rf"m\.gguf: keys of layer 0 have heads of {dim} numbers, which are no whole blocks of 32, "
        r"so that they cannot be kept in q8_0; supported for this model: f32, f16, bf16"
    )
    with pytest.raises(UsageError, match=message):
        LLM.load(path, kv_type="q8_0")
    with pytest.raises(UsageError, match="keys and values in q4_0; supported: auto, f32, f16"):
        LLM.load(path, kv_type="q4_0")


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A small model whose heads are whole blocks, made for long texts."""
    truth = Truth.read("qwen3")
    long = replace(truth, config=truth.config | {"max_position_embeddings": 1 << 20})
    path = tmp_path_factory.mktemp("blocks") / "m.gguf"
    return write_gguf(path, FAMILIES["qwen3"], long, tokenizer=vocabulary())


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1000, 6000])
def test_memory(file, capacity):
    """A cache has 34 bytes for 32 numbers; a sequence's estimate is what it takes, about."""
    llm = LLM.load(file, kv_type="q8_0")
    device, config = llm.model.device, llm.config
    numbers = config.layers * 2 * config.kv_heads * config.head_dim * capacity
    assert KVCache(config, device, capacity).nbytes * 32 == numbers * 34
    llm.engine(100).prefill([1] * 90)  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        engine = llm.engine(capacity)
        engine.prefill([1] * (capacity - 10))
        engine.decode(1)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.5 < sequence_bytes(config, capacity, device.threads) / measured < 2
    least = sequence_bytes(replace(config, kv_dtype=dtypes.f32), capacity)
    assert sequence_bytes(config, capacity) < least


def test_command(file, capsys):
    """`--kv-type q8_0` is taken where a model runs."""
    with pytest.raises(SystemExit) as done:
        main(["llm", "generate", "HELLO", "--raw", "-n", "3", "--kv-type", "q8_0", "-m", str(file)])
    assert not done.value.code
    assert "MAX_TOKENS" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.model
def test_default_model():
    """SmolLM2's logits are off by a thousandth at most, and it says what it says with f32."""
    runs = json.loads(GOLDEN.read_text(encoding="utf-8"))["runs"]
    wide, blocks = LLM.load(), LLM.load(kv_type="q8_0")
    for run in runs:
        ids = run["prompt_ids"] + run["output_ids"][:32]
        truth, ours = (llm.engine(len(ids)).logits_of(ids) for llm in (wide, blocks))
        assert 0 < nmse(ours, truth) <= 1e-3
        # Where its lead is no more than the error another token may come first.
        lead = np.subtract(*np.sort(truth, 1)[:, :-3:-1].T)
        sure = lead > 0.5
        assert sure.mean() > 0.5
        np.testing.assert_array_equal(ours.argmax(1)[sure], truth.argmax(1)[sure])
    raw = next(run for run in runs if run["name"] == "raw")
    generation = blocks.complete(raw["prompt"], max_tokens=32)
    "".join(generation)
    assert raw["output_ids"][:32] == generation.finish.ids


@pytest.mark.slow
def test_on_a_gpu(hipsim, tmp_path):
    """One sequence and a batch draw what the CPU draws, and no op leaves the GPU."""
    files = {
        name: write_gguf(
            tmp_path / f"{name}.gguf", FAMILIES[name], Truth.read(name), tokenizer=vocabulary()
        )
        for name in WHOLE
    }
    told = vendor.told(hipsim, tmp_path, CHILD, *files.values())
    expected = {}
    for name, path in files.items():
        generation = LLM.load(path, kv_type="q8_0").complete("HELLO", max_tokens=12)
        "".join(generation)
        expected[name] = [generation.finish.ids] * 2
    assert expected == {name: told[str(path)] for name, path in files.items()}
    assert {"qattention", "qattention_lse", "quantize", "kv_append"} <= set(told["ops"])
    assert not [line for line in told["placement"] if "on the cpu" in line or "decompos" in line]
