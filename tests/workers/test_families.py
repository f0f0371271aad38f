"""Each architecture, from files of either kind: its logits are transformers'."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_families import DECODED
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
from propolis_workers.llm import LLM
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.batch.paged_cache import PagedCache
from propolis_workers.llm.batch.paged_cache import Placed
from propolis_workers.llm.batch.paged_cache import Step
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.models import architectures
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


FILES = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name, family in FAMILIES.items()
    for kind in ("folder", "gguf")
    if kind == "folder" or family.gguf
]


def nmse(ours: np.ndarray, truth: np.ndarray) -> float:
    """The error's mean square, as a share of the truth's."""
    return float(((ours - truth) ** 2).mean() / (truth**2).mean())


def test_every_architecture_has_a_family():
    """Whatever is in the registry is judged here."""
    assert set(architectures()) == {family.architecture for family in FAMILIES.values()}


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_logits(name, kind, tmp_path):
    """Of a prompt at once, and of tokens that follow one by one."""
    truth = Truth.read(name).logits
    model = network(name, kind, tmp_path)
    engine = Engine(model, len(IDS))
    prompt = engine.logits_of(IDS[:PROMPT])
    assert nmse(prompt, truth[:PROMPT]) <= 1e-9
    decoded = np.array([engine.decode(token) for token in IDS[PROMPT:]])
    assert len(decoded) == DECODED
    assert nmse(decoded, truth[PROMPT:]) <= 1e-9


@pytest.mark.parametrize("name", FAMILIES)
def test_ragged(name, tmp_path):
    """Of sequences of other lengths in one step over a paged cache, and of a step of each."""
    truth = Truth.read(name).logits
    model = network(name, "folder", tmp_path)
    lengths, size, each = (7, 40, 19), 8, 6
    cache = PagedCache(model.config, model.device, 1 + each * len(lengths), size)
    blocks = [[1 + i * each + j for j in range(each)] for i in range(len(lengths))]
    rope = model.rope.reserve(len(IDS))
    step = Step(cache, len(lengths), sum(lengths), each)
    step.set([Placed(IDS[:n], 0, own) for n, own in zip(lengths, blocks, strict=True)])
    logits = model(step.ids, step.positions, rope, step).numpy()[0]
    expected = np.concatenate([truth[:n] for n in lengths])
    assert nmse(logits, expected) <= 1e-9
    one = Step(cache, len(lengths), len(lengths), each)
    one.set([Placed(IDS[n : n + 1], n, own) for n, own in zip(lengths, blocks, strict=True)])
    logits = model(one.ids, one.positions, rope, one).numpy()[0]
    assert nmse(logits, truth[list(lengths)]) <= 1e-9


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf])
def test_both_files_agree(name, tmp_path):
    """Both kinds of files give the same numbers, but for what converters change in the weights."""
    truth = Truth.read(name)
    gguf = read_config(GGUFFile.open(write_gguf(tmp_path / "m.gguf", FAMILIES[name], truth)))
    folder = read_config(SimpleNamespace(config=truth.config, path=tmp_path, tensors={}))
    changed = {"score_scale", "norm_offset", "ropes", "tied", "value_dim", "windows", "rope_of"}
    for key in set(type(gguf).__slots__) - changed:
        ours, theirs = getattr(gguf, key), getattr(folder, key)
        assert ours == (pytest.approx(theirs, rel=1e-6) if isinstance(theirs, float) else theirs)
    for layer in range(gguf.layers):
        assert gguf.window(layer) == folder.window(layer)
        assert gguf.rope_kind(layer) == folder.rope_kind(layer)
    assert [(r.dim, r.base) for r in gguf.ropes] == [(r.dim, r.base) for r in folder.ropes]
    assert gguf.values_dim == folder.values_dim
    usual = folder.head_dim**-0.5
    assert (gguf.score_scale or usual) == pytest.approx(folder.score_scale or usual)


@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek", "gpt_oss", "lfm2"])
@pytest.mark.parametrize("kept", [dtypes.f16, dtypes.bf16])
def test_kept_in_16_bits(name, kept, tmp_path):
    """Keys and values in half of the memory change the logits by what they are rounded by."""
    truth = Truth.read(name).logits
    model = network(name, "folder", tmp_path)
    wide = Engine(model, len(IDS))
    model.config = replace(model.config, kv_dtype=kept)
    engine = Engine(model, len(IDS))
    assert 2 * engine.nbytes == wide.nbytes
    engine.prefill(IDS[:PROMPT])
    decoded = np.array([engine.decode(token) for token in IDS[PROMPT:]])
    unit = 2.0**-11 if kept is dtypes.f16 else 2.0**-8
    assert 0 < nmse(decoded, truth[PROMPT:]) <= (8 * unit) ** 2


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_texts_and_images(prefix, tmp_path):
    """Of a checkpoint that reads images too, the language model is read, however it is named."""
    truth = Truth.read("gemma3")
    renamed = {
        name: prefix + name.removeprefix("model.") if name.startswith("model.") else name
        for name in truth.shapes
    }
    weights = {renamed[name]: array for name, array in truth.weights.items()}
    weights |= {"vision_tower.x.weight": np.zeros((2, 2), np.float32)}
    text = truth.config | {"tie_word_embeddings": None}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    folder = write_folder(tmp_path / "m", replace(truth, config=config), weights)
    source = SafetensorsFolder.open(folder)
    model = build(source, read_config(source), default_runtime().cpu)
    logits = Engine(model, len(IDS)).logits_of(IDS)
    assert nmse(logits, truth.logits) <= 1e-9


def test_what_gemma_3_leaves_out():
    """A config.json as the 4B model's has it: transformers' defaults stand for the rest."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = read_config(
        SimpleNamespace(config={"model_type": "gemma3", "text_config": text}, tensors={})
    )
    assert (8, 4, 256, 262_208) == (
        *(config.heads, config.kv_heads, config.head_dim, config.vocab_size),
    )
    assert config.windows[:6] == (1024,) * 5 + (0,)
    full, local = config.ropes
    assert (1e6, 8.0) == (full.base, full.scaling["factor"])
    assert (1e4, "default") == (local.base, local.scaling["rope_type"])
    assert config.tied


@pytest.mark.parametrize("name", ["gemma3", "deepseek", "gpt_oss", "lfm2", "mixtral", "falcon"])
def test_many_at_once(name, tmp_path):
    """Answered together, with prefixes that are shared, each gets the tokens that it gets alone."""
    path = write_gguf(tmp_path / "m.gguf", FAMILIES[name], Truth.read(name), tokenizer=vocabulary())
    llm = LLM.load(path)
    prompts = [IDS[:20], IDS[:20], IDS[:33], IDS[5:9], IDS[:3]]
    asked = [Request(prompt=ids, params=SamplingParams(), max_tokens=12) for ids in prompts]
    engine = BatchEngine(llm, context=64)
    for number, one in enumerate(asked):
        engine.add(number, one)
    together: dict[int, list[int]] = {number: [] for number in range(len(asked))}
    while engine.busy:
        for drawn in engine.step():
            together[drawn.key].append(drawn.token)
    for number, one in enumerate(asked):
        alone = llm.engine(64)
        logits, ids = alone.prefill(one.prompt), []
        while len(ids) < len(together[number]):
            ids.append(int(logits.argmax()))
            logits = alone.decode(ids[-1])
        assert together[number] == ids
    assert all(together.values())
