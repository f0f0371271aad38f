from __future__ import annotations

import gguf
import numpy as np
import pytest

from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis.errors import ModelError
from propolis_workers.llm import LLM
from propolis_workers.llm.layers import Layers
from propolis_workers.weights import GGUFFile


Q8_0 = gguf.GGMLQuantizationType.Q8_0
NAMES = {"layers.{}.q": "blk.{}.attn_q", "layers.{}.k": "blk.{}.attn_k"}
NAMES |= {"layers.{}.v": "blk.{}.attn_v", "output": "output", "embedding": "token_embd"}
QKV = {"layers.1.q": 32, "layers.1.k": 16, "layers.1.v": 16}


def layers_of(path, progress=None) -> Layers:
    """The layers of a GGUF file, on the CPU."""
    return Layers(GGUFFile.open(path), NAMES, default_runtime().cpu, progress)


def some_input() -> Tensor:
    """Three rows of the model's width."""
    values = np.random.default_rng(0).normal(size=(1, 3, 32)).astype(np.float32)
    return Tensor.from_numpy(values, default_runtime().cpu)


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "Q8_0"])
def test_merged(tiny, tmp_path, stored):
    """One merged product has the outputs of the separate ones."""
    kind = gguf.GGMLQuantizationType[stored]
    layers, x = layers_of(tiny.gguf(tmp_path / "m.gguf", stored=kind)), some_input()
    merged = layers.merged_linear(QKV, 32)
    assert len(merged.layers) == 1
    for actual, (name, width) in zip(merged(x), QKV.items(), strict=True):
        expected = layers.linear(name, 32, width)(x).numpy()
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_not_merged(tiny, tmp_path):
    """Weights of several dtypes stay separate products, with the same outputs."""
    half = {"blk.1.attn_k.weight": tiny.gguf_tensors["blk.1.attn_k.weight"].astype(np.float16)}
    layers, x = layers_of(tiny.gguf(tmp_path / "m.gguf", tensors=half)), some_input()
    several = layers.merged_linear(QKV, 32)
    assert len(several.layers) == 3
    for actual, (name, width) in zip(several(x), QKV.items(), strict=True):
        np.testing.assert_array_equal(actual.numpy(), layers.linear(name, 32, width)(x).numpy())


@pytest.mark.parametrize("stored", ["F32", "F16", "Q8_0"])
def test_bias(tiny, tmp_path, stored):
    """A bias is added, whatever dtypes it and its weight have; products then stay separate."""
    bias = np.arange(16, dtype=np.float16)
    path = tiny.gguf(
        tmp_path / "m.gguf",
        tensors={"blk.1.attn_k.bias": bias},
        stored=gguf.GGMLQuantizationType[stored],
    )
    without = tiny.gguf(tmp_path / "n.gguf", stored=gguf.GGMLQuantizationType[stored])
    x = some_input()
    several, plain = (
        layers_of(path).merged_linear(QKV, 32),
        layers_of(without).merged_linear(QKV, 32),
    )
    assert len(several.layers) == 3
    for actual, expected, add in zip(several(x), plain(x), (0, bias, 0), strict=True):
        np.testing.assert_allclose(actual.numpy(), expected.numpy() + add, rtol=1e-4, atol=1e-5)


def test_tied(tiny, tmp_path):
    """Without an output matrix the embedding is it."""
    table = tiny.weights["model.embed_tokens.weight"]
    tied = tiny.gguf(tmp_path / "t.gguf", tensors={"output.weight": None})
    both = tiny.gguf(tmp_path / "b.gguf", tensors={"output.weight": table})
    ids = [*range(50, 80)]
    expected = LLM.load(both).engine().logits_of(ids)
    np.testing.assert_array_equal(expected, LLM.load(tied).engine().logits_of(ids))
    folder = tiny.folder(
        tmp_path / "f", config={"tie_word_embeddings": True}, tensors={"lm_head.weight": None}
    )
    np.testing.assert_allclose(
        LLM.load(folder).engine().logits_of(ids), expected, rtol=1e-4, atol=1e-4
    )


def test_not_tied_but_missing(tiny, tmp_path):
    """A checkpoint that says it is not tied and has no output matrix is incomplete."""
    folder = tiny.folder(tmp_path / "f", tensors={"lm_head.weight": None})
    with pytest.raises(ModelError, match=r"tensor lm_head.weight is missing"):
        LLM.load(folder)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("blk.1.attn_k.weight", None, "attn_k.weight is missing .the nearest is blk.1.attn_"),
        ("blk.0.ffn_norm.weight", None, "ffn_norm.weight is missing .*not a complete model"),
        ("blk.0.attn_q.weight", np.ones((31, 32), "f4"), r"shape \(31, 32\), .* say \(32, 32\)"),
        ("output_norm.weight", np.ones(31, "f4"), r"output_norm.weight has shape \(31,\)"),
        ("blk.1.attn_v.bias", np.ones(3, "f4"), r"attn_v.bias has shape \(3,\), .* \(16,\)"),
        (
            "blk.0.ffn_up.weight",
            np.ones((64, 32), "i4"),
            "ffn_up.weight is i32; weights are floats",
        ),
    ],
)
def test_bad_tensor(tiny, tmp_path, name, values, message):
    """A tensor that is missing or ill-shaped is named, with what would fit."""
    path = tiny.gguf(tmp_path / "m.gguf", tensors={name: values})
    with pytest.raises(ModelError, match=message):
        LLM.load(path)


def test_all_of_a_merge_missing(tiny, tmp_path):
    """A layer of which nothing is there is reported like any missing tensor."""
    gone = dict.fromkeys(f"blk.1.attn_{x}.weight" for x in "qkv")
    with pytest.raises(ModelError, match=r"tensor blk.1.attn_q.weight is missing"):
        LLM.load(tiny.gguf(tmp_path / "m.gguf", tensors=gone))


def test_progress(tiny, tmp_path):
    """Progress rises to all bytes, and is never more, though tied weights are read twice."""
    seen = []
    path = tiny.gguf(tmp_path / "m.gguf", tensors={"output.weight": None}, stored=Q8_0)
    LLM.load(path, progress=lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    total = sum(info.nbytes for info in GGUFFile.open(path).tensors.values())
    assert sorted(done) == done
    assert {total} == {t for _, t in seen}
    assert total == done[-1]


def test_plain_weights_keep_one_copy(tiny, tmp_path):
    """Merged f32 weights are one matrix; others are views of the file's own bytes."""
    path = tiny.gguf(tmp_path / "m.gguf")
    layers = layers_of(path)
    merged = layers.merged_linear(QKV, 32).layers[0].weight
    assert (64, 32) == merged.shape
    single = layers.linear("layers.1.q", 32, 32).weight
    assert dtypes.f32 is single.dtype
    assert not single.array.flags.writeable  # the map's
    assert not np.shares_memory(merged.array, single.array)
