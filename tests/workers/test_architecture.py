from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.config import Experts
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.models import read_config
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


BIG = 10**400


def from_folder(tiny, **config) -> ModelConfig:
    """The numbers of a folder with this config.json; None removes a key."""
    config = tiny.config | {"vocab_size": 266} | config
    return read_config(SimpleNamespace(config=config, tensors={}))


def from_gguf(tiny, tmp_path, **changes) -> ModelConfig:
    """The numbers of a GGUF file, whose ``llama.*`` keys are changed."""
    metadata = {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    with GGUFFile.open(tiny.gguf(tmp_path / "m.gguf", metadata=metadata)) as file:
        return read_config(file)


def test_both_files_agree(tiny_gguf, tiny_folder):
    """Both kinds of files give the same numbers, all but how rope pairs."""
    gguf = read_config(GGUFFile.open(tiny_gguf))
    folder = read_config(SafetensorsFolder.open(tiny_folder))
    assert gguf.ropes[0].interleaved
    assert not folder.ropes[0].interleaved
    fields = set(ModelConfig.__slots__) - {"ropes", "norm_eps", "tied", "value_dim"}
    assert {f: getattr(gguf, f) for f in fields} == {f: getattr(folder, f) for f in fields}
    assert math.isclose(gguf.norm_eps, folder.norm_eps, rel_tol=1e-6)
    assert (266, 32, 64, 2) == (gguf.vocab_size, gguf.width, gguf.ffn_width, gguf.layers)
    assert (4, 2, 8, 8, 96) == (
        *(gguf.heads, gguf.kv_heads, gguf.head_dim, gguf.ropes[0].dim, gguf.context_length),
    )


GGUF_KEYS = (
    *("embedding_length", "feed_forward_length", "block_count", "context_length"),
    *("attention.head_count", "attention.layer_norm_rms_epsilon"),
)


@pytest.mark.parametrize("key", GGUF_KEYS)
def test_gguf_missing(tiny, tmp_path, key):
    """Each number without a default is named when it is missing."""
    with pytest.raises(ModelError, match=rf"m.gguf: llama.{key} is missing: the file is not"):
        from_gguf(tiny, tmp_path, **{key.replace(".", "__"): None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", "2"),
        ("block_count", 2.0),
        ("block_count", True),
        ("attention.head_count", [4, 4]),
        ("attention.layer_norm_rms_epsilon", "1e-5"),
        ("rope.freq_base", False),
    ],
)
def test_gguf_types(tiny, tmp_path, key, value):
    """A value of another type is named, with the value."""
    with pytest.raises(ModelError, match=rf"llama.{key} is .*, of the wrong type"):
        from_gguf(tiny, tmp_path, **{key.replace(".", "__"): value})


def test_gguf_defaults(tiny, tmp_path):
    """What the specification makes optional has its defaults; key_length is the head's size."""
    left_out = dict.fromkeys(("attention__head_count_kv", "rope__freq_base"))
    config = from_gguf(tiny, tmp_path, **left_out, attention__key_length=16)
    assert (4, 16, 16) == (config.kv_heads, config.head_dim, config.ropes[0].dim)
    assert config.ropes[0].base == 10_000.0


def test_gguf_embedding(tiny, tmp_path):
    """A file without an embedding table is no language model."""
    path = tiny.gguf(tmp_path / "m.gguf", tensors={"token_embd.weight": None})
    with pytest.raises(ModelError, match=r"tensor token_embd.weight .* is missing"):
        read_config(GGUFFile.open(path))


def test_gguf_experts(tiny, tmp_path):
    """A mixture of experts calls itself llama too; more used than there are make no sense."""
    mixed = from_gguf(tiny, tmp_path, expert_count=8, expert_used_count=2)
    assert ("mixtral", 8, 2) == (mixed.architecture, mixed.experts.count, mixed.experts.used)
    with pytest.raises(ModelError, match="do not describe a transformer"):
        from_gguf(tiny, tmp_path, expert_count=8, expert_used_count=9)
    assert from_gguf(tiny, tmp_path, expert_count=0).experts is None


def test_unknown_architecture(tiny, tmp_path):
    """An architecture without a worker is named, and those there are."""
    path = tiny.gguf(tmp_path / "m.gguf", architecture="gpt-x")
    with pytest.raises(UnsupportedModelError, match=r"'gpt-x' is not supported.* llama, "):
        read_config(GGUFFile.open(path))
    with pytest.raises(UnsupportedModelError, match=r"config.json: architecture 'gpt-x'"):
        from_folder(tiny, model_type="gpt-x")


@pytest.mark.parametrize(
    "key",
    [
        *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "max_position_embeddings", "vocab_size"),
    ],
)
def test_folder_missing(tiny, key):
    """Each setting without a default is named when it is missing; null is missing."""
    with pytest.raises(ModelError, match=f"config.json: {key} is missing"):
        from_folder(tiny, **{key: None})


def test_folder_defaults(tiny):
    """Optional settings may be null, as old checkpoints write them."""
    names = ("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling")
    config = from_folder(tiny, **dict.fromkeys(names), quantization_config=None)
    assert (4, 8, 10_000.0) == (config.kv_heads, config.head_dim, config.ropes[0].base)
    assert config.ropes[0].scaling == {"rope_type": "default"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "32"}, "is '32', of the wrong type; supported: a whole number"),
        ({"hidden_size": 32.0}, "hidden_size is '32.0', of the wrong type"),
        ({"num_hidden_layers": True}, "num_hidden_layers is 'True', of the wrong type"),
        ({"rms_norm_eps": []}, "rms_norm_eps is .*, of the wrong type"),
        ({"rms_norm_eps": BIG}, "rms_norm_eps is .*, outside"),
        ({"model_type": 1}, "model_type is '1', of the wrong type"),
        ({"rope_theta": "x"}, "rope_theta is 'x', of the wrong type"),
    ],
)
def test_folder_types(tiny, changes, message):
    """A value of another type is named, with the value."""
    with pytest.raises(ModelError, match=message):
        from_folder(tiny, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; supported: silu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'; supported: plain"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'; supported"),
        (
            {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}},
            "quantised by 'fp8' in 'e5m2'; supported",
        ),
        ({"quantization_config": 1}, "quantised by an unknown method; supported"),
    ],
)
def test_folder_unsupported(tiny, changes, message):
    """What would change the numbers and is not supported is refused, never ignored."""
    with pytest.raises(UnsupportedModelError, match=message):
        from_folder(tiny, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        *({key: 0} for key in ("hidden_size", "vocab_size")),
        *({key: -4} for key in ("num_attention_heads", "num_key_value_heads", "head_dim")),
        {"num_attention_heads": 0},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"hidden_size": BIG},
        {"max_position_embeddings": 1 << 40},
        {"rms_norm_eps": math.nan},
        {"rms_norm_eps": -1.0},
        {"rope_theta": 0},
        {"rope_theta": math.inf},
    ],
)
def test_nonsense(tiny, changes):
    """Numbers that describe no transformer are refused before anything is computed."""
    with pytest.raises(ModelError, match="do not describe a transformer"):
        from_folder(tiny, **changes)


def test_what_is_nonsense_is_named(tiny):
    """The numbers that are wrong are said, and no others."""
    with pytest.raises(ModelError, match=r"transformer: heads: -4$"):
        from_folder(tiny, num_attention_heads=-4, num_key_value_heads=1, head_dim=8)
    with pytest.raises(ModelError, match=r"transformer: heads: 4 \(supported: a multiple of 3, "):
        from_folder(tiny, num_attention_heads=4, num_key_value_heads=3)
    with pytest.raises(ModelError, match=r"ropes: 8 elements with a base of 0 \(supported: an ev"):
        from_folder(tiny, rope_theta=0)
    with pytest.raises(ModelError, match=r"context_length: 10{12} \(supported: 1 to \d+\)$"):
        from_folder(tiny, max_position_embeddings=10**12)


@pytest.mark.parametrize(
    ("experts", "said"),
    [
        (Experts(4, 8, 16), "experts: 8 of 4 for each token, 16 wide"),
        (
            Experts(4, 2, 16, groups=3),
            "experts: 2 of 4 for each token, 16 wide, from 1 of 3 groups",
        ),
    ],
)
def test_experts_that_are_nonsense(tiny, experts, said):
    """Their numbers are told, and not a part of an object of ours."""
    with pytest.raises(ModelError, match=f"do not describe a transformer: {said}$"):
        replace(from_folder(tiny), experts=experts)


def test_weights_of_more_layers(tiny, tmp_path):
    """They are another model's; those that guess the next tokens are not counted."""
    folder = tiny.folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    for changes, right in (
        ({"num_hidden_layers": layers - 1}, False),
        ({"num_hidden_layers": layers - 1, "num_nextn_predict_layers": 1}, True),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        with SafetensorsFolder.open(folder) as source:
            if right:
                assert read_config(source).layers == layers - 1
                continue
            with pytest.raises(ModelError, match=f"weights have {layers}: one is of another"):
                read_config(source)


@pytest.mark.parametrize("layers", [0, -1, 5000, BIG])
def test_number_of_layers(tiny, layers):
    """No list is made for each of more layers than any model has."""
    with pytest.raises(ModelError, match=r"num_hidden_layers is .*, supported: 1 to 4096"):
        from_folder(tiny, num_hidden_layers=layers)
