"""What a file leaves out is as transformers (folders) and llama.cpp (GGUF files) have it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from typing import Any

import pytest
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import write_gguf

from propolis.errors import ModelError
from propolis_workers.llm.models import architectures
from propolis_workers.llm.models import read_config
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


TYPES = sorted({name for one in architectures().values() for name in one.folder})


def read(folder, values: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a folder with this config."""
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    config = read_config(SafetensorsFolder.open(folder))
    said = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    turned = [
        (rope.interleaved, rope_frequencies(rope.dim, rope.base, rope.scaling)[0].tolist())
        for rope in config.ropes
    ]
    return {**said, "ropes": turned}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TYPES)
def test_folders(tmp_path, kind):
    """Without any one of its settings a config means the same as in transformers, or is refused."""
    if importlib.util.find_spec("transformers") is None:
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            pytest.fail("transformers is not installed: `make oracles` installs it")
        pytest.skip("transformers is not installed: `make oracles` installs it")
    import transformers
    from safetensors.numpy import save_file

    save_file({}, tmp_path / "model.safetensors")
    more = {"num_experts_per_tok": 6} if kind == "deepseek_v2" else {}
    said = json.loads(transformers.AutoConfig.for_model(kind, **more).to_json_string(False))
    whole = read(tmp_path, said)
    for key in sorted(said.keys() - {"model_type"}):
        less = {name: value for name, value in said.items() if name != key}
        try:
            found = read(tmp_path, less)
        except ModelError as exc:
            # A model has no usual width or depth: such a file is no whole one.
            inner = "hidden_size" if key == "text_config" else key
            assert f"{inner} is missing" in str(exc), key  # noqa: PT017  either is right
        else:
            assert found == whole, key


def without(tmp_path, name: str, *keys: str) -> GGUFFile:
    """The GGUF file of a family that does not say these."""
    truth, family = Truth.read(name), FAMILIES[name]
    path = write_gguf(tmp_path / "m.gguf", family, truth)
    file = GGUFFile.open(path)
    gone = {f"{family.gguf}.{key}" for key in keys}
    file.metadata = {key: value for key, value in file.metadata.items() if key not in gone}
    return file


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf])
def test_base_of_rotations(tmp_path, name):
    """A GGUF file that names no base of rotations means 10000, whatever the architecture."""
    found = read_config(without(tmp_path, name, "rope.freq_base", "rope.freq_base_swa"))
    assert {rope.base for rope in found.ropes} == {10_000.0}


@pytest.mark.parametrize(
    ("name", "keys", "wanted"),
    [
        ("gemma2", ("attn_logit_softcapping",), {"score_cap": 50.0}),
        ("gemma2", ("final_logit_softcapping",), {"logit_cap": 30.0}),
        ("gemma2", ("attention.sliding_window",), {"windows": (4096, 0, 4096)}),
        ("gemma3", ("attention.sliding_window",), {"windows": (0,) * 9, "rope_of": (0,) * 9}),
        ("mistral", ("attention.sliding_window",), {"architecture": "llama", "windows": ()}),
        ("llama", ("attention.head_count_kv",), {"kv_heads": 4}),
        ("qwen3", ("attention.value_length",), {"head_dim": 32, "values_dim": 16}),
        ("llama", ("attention.key_length", "attention.value_length"), {"head_dim": 16}),
        ("llama", ("rope.dimension_count",), {"ropes": 16}),
    ],
)
def test_gguf(tmp_path, name, keys, wanted):
    """What a GGUF file leaves out is as in llama.cpp."""
    config = read_config(without(tmp_path, name, *keys))
    found = {key: getattr(config, key) for key in wanted}
    found |= {"ropes": config.ropes[0].dim} if "ropes" in found else {}
    layers = config.layers
    assert found == {k: v[:layers] if isinstance(v, tuple) else v for k, v in wanted.items()}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("stablelm", "attention.layer_norm_epsilon"),
        ("llama", "attention.layer_norm_rms_epsilon"),
        ("gemma", "context_length"),
        ("qwen3", "block_count"),
        ("deepseek", "attention.kv_lora_rank"),
        ("lfm2", "shortconv.l_cache"),
    ],
)
def test_gguf_refused(tmp_path, name, key):
    """What llama.cpp does not do without is named."""
    with pytest.raises(ModelError, match=f"{key} is missing"):
        read_config(without(tmp_path, name, key))
