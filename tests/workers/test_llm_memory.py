"""What a language model takes in memory is known, and refused, before it is taken."""

from __future__ import annotations

import gc
import math
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from structlog.testing import capture_logs
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import write_gguf

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.cli import main
from propolis.cpu import CpuMemory
from propolis.dispatch import DispatchTable
from propolis.errors import OutOfMemoryError
from propolis_workers.llm import LLM
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.config import Experts
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.kv_cache import KVCache
from propolis_workers.llm.layers import Layers
from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.memory import SCORED
from propolis_workers.llm.memory import captured_bytes
from propolis_workers.llm.memory import sequence_bytes
from propolis_workers.llm.memory import weight_bytes
from propolis_workers.weights import GGUFFile


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets what is free from now on."""
    return lambda nbytes: monkeypatch.setattr(CpuMemory, "available", lambda _: nbytes)


@pytest.fixture(scope="module")
def long(tiny, tmp_path_factory):
    """The tiny model in blocks of 8 bits, trained for long texts as it were."""
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    kind = gguf.GGMLQuantizationType.Q8_0
    return tiny.gguf(path, metadata={"llama.context_length": 1 << 28}, stored=kind)


@pytest.fixture(scope="module")
def loaded(long):
    """The same, loaded by a runtime of its own."""
    return LLM.load(long, runtime=Runtime.start(Config(plugins=[])))


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "tokens"), [(300, 290), (1000, 990), (3000, 2990)])
def test_sequence(loaded, capacity, tokens):
    """Within a factor of two the estimate is what a full context allocates."""
    device = loaded.model.device
    LLM.engine(loaded, 100).prefill([1] * 90)  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        engine = loaded.engine(capacity)
        engine.prefill([1] * tokens)
        engine.decode(1)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = sequence_bytes(loaded.config, capacity, device.threads)
    assert 0.5 < estimate / measured < 2


def test_weights(loaded):
    """So is that of the weights: the file's bytes, and four for each element once prepared."""
    device, tensors = loaded.model.device, loaded.source.tensors
    (prepared,) = device.table.placement.as_dict()["prepared_weights"]
    vectors = sum(4 * t.shape[0] for t in tensors.values() if len(t.shape) == 1)
    stored = sum(t.nbytes for t in tensors.values() if len(t.shape) == 2)
    estimate = weight_bytes(loaded.source, "token_embd.weight", "output.weight", device)
    assert vectors + stored + prepared["nbytes_after"] == estimate


def test_tied_embedding(loaded):
    """An embedding that is the output too is prepared besides."""
    device, tensors = loaded.model.device, loaded.source.tensors
    apart = weight_bytes(loaded.source, "token_embd.weight", "output.weight", device)
    tied = weight_bytes(loaded.source, "token_embd.weight", "none", device)
    rows, width = tensors["token_embd.weight"].shape
    assert rows * width * 4 + tensors["token_embd.weight"].nbytes == tied - apart


def test_weights_that_do_not_fit(long, free, monkeypatch):
    """A model larger than what is free is refused, and none of it is read."""
    monkeypatch.delattr(Layers, "__init__")
    free(50_000)
    with pytest.raises(
        OutOfMemoryError, match=r"^long.gguf needs 0.\d\d MB of memory, and 0.05 MB"
    ):
        LLM.load(long)


def test_context_that_does_not_fit(loaded, free, monkeypatch):
    """So is a context, before its keys and values are allocated."""
    monkeypatch.delattr(KVCache, "__init__")
    monkeypatch.setattr(loaded.model.device, "threads", 2)
    free(1_000_000_000)
    with pytest.raises(OutOfMemoryError, match=r"^a context of 100000000 tokens needs 236\.80 GB"):
        Engine(loaded.model, 100_000_000)


@pytest.mark.parametrize(
    "command",
    [
        ("chat", "--context", "100000000"),
        ("generate", "x", "--context", "100000000", "-n", "99999999"),
    ],
)
def test_command(long, free, monkeypatch, capsys, command):
    """The command line says so in one line, before it reads any weight."""
    monkeypatch.delattr(Layers, "__init__")
    free(1_000_000_000)
    with pytest.raises(SystemExit) as caught:
        main(["llm", *command, "-m", str(long)])
    out, err = capsys.readouterr()
    assert (3, "") == (caught.value.code, out)
    (line,) = err.splitlines()
    assert line.startswith("error: long.gguf with a context of ")
    assert "and 1.00 GB are free on cpu: give a smaller --context" in line


@pytest.mark.parametrize("ask", ["chat", "engine"])
def test_context_beyond_training(llm, ask):
    """A context that is longer than the model's is cut to that, and it is said."""
    longest = llm.config.context_length
    with capture_logs() as logs:
        if ask == "engine":
            assert longest == llm.engine(longest + 1).capacity
        else:
            llm.chat([{"role": "user", "content": "the"}], context=longest + 1)
    (event,) = logs
    assert ("context.cut", longest + 1, longest) == (event["event"], event["asked"], event["used"])


def test_usual_contexts(llm):
    """Of what nobody asked for nothing is said."""
    from propolis_workers.llm.conversation import Conversation

    with capture_logs() as logs:
        llm.engine(llm.config.context_length)
        llm.engine()
        Conversation(llm)
    assert [] == logs


def test_guesses(llm, monkeypatch):
    """Logits of tokens that are guessed are counted, where a scored prompt has fewer."""
    needed = []
    monkeypatch.setattr(llm.model.device, "expect_room", lambda nbytes, *_: needed.append(nbytes))
    for guesses in (0, 3, 1 << 20):
        BatchEngine(llm, context=64, most=40, speculate=guesses)
    row = 2 * 4 * llm.config.vocab_size
    assert needed[1] - needed[0] == (40 * 3 - SCORED) * row
    assert needed[2] - needed[0] == (CHUNK - SCORED) * row


def test_parts_of_latent_attention(tmp_path):
    """What expands keys and values, in two parts of a block format, becomes numbers of f32."""
    kinds = gguf.GGMLQuantizationType
    truth, family = Truth.read("deepseek-v3"), FAMILIES["deepseek-v3"]
    path = write_gguf(tmp_path / "m.gguf", family, truth, stored=kinds.Q4_0)
    with GGUFFile.open(path) as file:
        parts = {name: i for name, i in file.tensors.items() if "attn_v_b" in name}
        assert parts
        few = {name: replace(i, dtype=dtypes.q4_0, shape=(4, 16, 32)) for name, i in parts.items()}
        source = SimpleNamespace(tensors=few)
        device = default_runtime().cpu
        found = weight_bytes(source, "token_embd.weight", "output.weight", device)
        assert found == len(parts) * 4 * 16 * 32 * 4


def test_towers_are_not_read(tmp_path):
    """Of a model of images and texts nothing is counted but its language model."""
    device = default_runtime().cpu
    info = SimpleNamespace(shape=(8, 4), dtype=dtypes.f32, nbytes=128)
    for embedding, output, others in (
        ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight", "vision_"),
        ("model.language_model.embed_tokens.weight", "lm_head.weight", "model.vision_"),
    ):
        mine = dict.fromkeys((embedding, output), info)
        towers = dict.fromkeys((f"{others}tower.weight", f"{others}x.weight"), info)
        given = SimpleNamespace(tensors=mine), SimpleNamespace(tensors=mine | towers)
        alone, both = (weight_bytes(source, embedding, output, device) for source in given)
        assert alone == both


@pytest.mark.parametrize("kind", [dtypes.q8_0, dtypes.q4_k, dtypes.tq1_0], ids=str)
def test_experts_are_counted_as_prepared(kind):
    """Experts in a block format take what they take once a kernel has them in its own form."""
    device = Runtime.start(Config(device="cpu")).cpu
    shape = (3, 64, 512)
    raw = np.zeros(kind.nbytes(math.prod(shape)), np.uint8)
    w = Tensor.from_blocks(raw, kind, shape, device)
    op = ops.moe_qmatmul
    DispatchTable.of(device).prepare(op, op.key(dtypes.f32, kind), w)
    (taken,) = [getattr(form, "nbytes", 0) for form in w.prepared.values()] or [w.nbytes]
    info = SimpleNamespace(shape=shape, dtype=kind, nbytes=raw.nbytes)
    source = SimpleNamespace(tensors={"blk.0.ffn_up_exps.weight": info})
    found = weight_bytes(source, "token_embd.weight", "output.weight", device)
    assert found == pytest.approx(taken, rel=1e-6)


def test_experts_stay_as_they_are(tmp_path):
    """Experts in Q8_0 are counted as the file holds them: prepared or not, they take as much."""
    path = write_gguf(
        tmp_path / "m.gguf",
        FAMILIES["mixtral"],
        Truth.read("mixtral"),
        stored=gguf.GGMLQuantizationType.Q8_0,
    )
    with GGUFFile.open(path) as file:
        experts = sum(i.nbytes for name, i in file.tensors.items() if "_exps" in name)
        others = {name: i for name, i in file.tensors.items() if "_exps" not in name}
        plain = SimpleNamespace(tensors=others)
        names = ("token_embd.weight", "output.weight", default_runtime().cpu)
        assert weight_bytes(file, *names) == weight_bytes(plain, *names) + experts


def test_what_experts_give_is_counted(loaded):
    """Of each token the sums of all its experts, and those weighted, where they are narrow."""
    config = replace(loaded.config, experts=Experts(128, 8, 4))
    assert config.inner_width < 8 * config.width
    for rows in (1, 100):
        logits = 2 * 4 * config.vocab_size
        assert captured_bytes(config, rows, 1) - logits >= 4 * rows * 2 * 8 * config.width
