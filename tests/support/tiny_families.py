"""
Tiny random models of each architecture, whose truth is transformers'.

Their weights are numbers of numpy's `RandomState`, which never changes, drawn by the names that
transformers saves: a golden file holds settings, names, shapes and logits, and no weights.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import gguf
import numpy as np
from tiny_family_table import COMMON
from tiny_family_table import FAMILIES
from tiny_family_table import VOCAB
from tiny_family_table import Family
from tiny_model import alphabet

from propolis import default_runtime
from propolis import dtypes
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis import DType
    from propolis_workers.llm.network.decoder import Decoder

Weights = dict[str, np.ndarray]
GOLDEN = Path(__file__).parents[1] / "data/families"
PROMPT, DECODED = 40, 20
IDS = [int(i) for i in np.random.RandomState(1).randint(0, VOCAB, PROMPT + DECODED)]


@dataclass(frozen=True)
class Truth:
    """What a golden file holds: settings, shapes of the weights, and logits after each token."""

    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    logits: np.ndarray

    @classmethod
    def read(cls, name: str) -> Truth:
        """The golden file of a family."""
        said = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
        shapes = {key: tuple(shape) for key, shape in said["shapes"].items()}
        return cls(said["config"], shapes, np.load(GOLDEN / f"{name}.npy"))

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Under the names that transformers saves."""
        return {name: weight(name, shape) for name, shape in self.shapes.items()}


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of a tensor, f32."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if len(shape) == 1:
        centre, spread = (1.0, 0.3) if name.endswith("norm.weight") else (0.0, 0.2)
        return random.uniform(centre - spread, centre + spread, shape).astype(np.float32)
    scale = 3.0 if "embed" in name else 1.5 * shape[-1] ** -0.5
    return (random.standard_normal(shape) * scale).astype(np.float32)


def network(name: str, kind: str, path: Path, dtype: DType = dtypes.f32) -> Decoder:
    """The network of a family, from a file of that kind, written into a folder."""
    truth = Truth.read(name)
    path.mkdir(parents=True, exist_ok=True)
    if kind == "gguf":
        source = GGUFFile.open(write_gguf(path / "m.gguf", FAMILIES[name], truth))
    else:
        source = SafetensorsFolder.open(write_folder(path / "m", truth))
    config = replace(read_config(source), dtype=dtype, kv_dtype=dtype)
    assert config.architecture == FAMILIES[name].architecture
    return build(source, config, default_runtime().device("cpu"))


def write_folder(path: Path, truth: Truth, weights: Mapping[str, np.ndarray] | None = None) -> Path:
    """A safetensors folder, without a tokenizer; of other weights than the truth's, if given."""
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(truth.config), encoding="utf-8")
    save_file(dict(weights or truth.weights), path / "model.safetensors", {"format": "pt"})
    return path


def gguf_names(family: Family, layers: int, weights: Weights) -> dict[str, str]:
    """The gguf library's name of each weight, with its suffix; experts' by themselves."""
    arch = next(key for key, said in gguf.MODEL_ARCH_NAMES.items() if said == family.gguf)
    table = gguf.get_tensor_name_map(arch, layers)
    found = {name: name for name in weights if name.startswith("blk.")}
    for name in weights.keys() - found.keys():
        theirs = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs is not None:
            found[name] = theirs
    return found


def gguf_tensors(family: Family, truth: Truth) -> dict[str, np.ndarray]:
    """The weights as llama.cpp's converter writes them, f32."""
    config, tensors = truth.config, {}
    weights = family.arrange(truth.weights, config) if family.arrange else truth.weights
    names = gguf_names(family, config["num_hidden_layers"], weights)
    heads = {
        "attn_q.": config["num_attention_heads"],
        "attn_k.": config["num_key_value_heads"],
    }
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, values in weights.items():
        theirs = names.get(name)
        if theirs is None:
            one, number = _expert_of(name)
            experts.setdefault(one, {})[number] = values
            continue
        for part, count in heads.items():
            if family.permuted and part in theirs:
                halves = values.reshape(count, 2, len(values) // count // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)  # noqa: PLW2901  (as the file has it)
        tensors[theirs] = family.convert(theirs, values) if family.convert else values
    for name, parts in experts.items():
        tensors[name] = np.stack([parts[number] for number in range(len(parts))])
    return tensors


def _expert_of(name: str) -> tuple[str, int]:
    """The name of the stacked tensor that an expert's belongs to, and its number."""
    which = {"w1": "gate", "w2": "down", "w3": "up"}
    parts = name.split(".")
    at = parts.index("experts")
    kind = parts[at + 2]
    kind = which.get(kind) or kind.removesuffix("_proj")
    return f"blk.{parts[2]}.ffn_{kind}_exps.weight", int(parts[at + 1])


_KINDS = {str: "STRING", bool: "BOOL", int: "UINT32", float: "FLOAT32"}
_EPSILONS = {
    **dict.fromkeys(("rms_norm_eps", "norm_eps"), "rms_"),
    **dict.fromkeys(("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"), ""),
}


def vocabulary() -> dict[str, Any]:
    """Of bytes below 92, one token each, one of two, and three control tokens."""
    tokens = [*alphabet()[: VOCAB - 4], "AB", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["A B"],
        "tokenizer.ggml.token_type": [1] * (VOCAB - 3) + [3] * 3,
        "tokenizer.ggml.eos_token_id": VOCAB - 1,
    }


def write_gguf(
    path: Path,
    family: Family,
    truth: Truth,
    *,
    tokenizer: Mapping[str, Any] | None = None,
    stored: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """A GGUF file, as the gguf library writes it."""
    config = truth.config
    rope = config.get("rope_parameters") or {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    said = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }
    for key, theirs in _EPSILONS.items():
        if key in config:
            said[f"attention.layer_norm_{theirs}epsilon"] = config[key]
    if "rope_theta" in rope:
        said["rope.freq_base"] = rope["rope_theta"]
        said["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer = gguf.GGUFWriter(path, family.gguf)
    for key, value in {**said, **family.metadata}.items():
        kind = "ARRAY" if isinstance(value, list) else _KINDS[type(value)]
        full = f"{family.gguf}.{key}"
        if kind == "ARRAY":
            writer.add_array(full, value)
        else:
            writer.add_key_value(full, value, gguf.GGUFValueType[kind])
    for key, value in (tokenizer or {}).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, gguf.GGUFValueType[_KINDS[type(value)]])
    for name, values in gguf_tensors(family, truth).items():
        whole = values.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0] == 0
        if values.ndim > 1 and whole and stored is not gguf.GGMLQuantizationType.F32:
            packed = gguf.quantize(values, stored)
            writer.add_tensor(name, packed, raw_dtype=stored)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def compute(name: str) -> Truth:
    """What transformers computes, in f64."""
    import tempfile

    import torch
    import transformers

    family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(
        family.model_type, **{**COMMON, **family.settings}, attn_implementation="eager"
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        model.save_pretrained(path)
        from safetensors.numpy import load_file

        shapes = {key: a.shape for key, a in load_file(path / "model.safetensors").items()}
        said = json.loads((path / "config.json").read_text(encoding="utf-8"))
        said.pop("transformers_version", None)
        truth = Truth(said, dict(sorted(shapes.items())), np.zeros(0))
        (path / "model.safetensors").unlink()
        write_folder(path, truth)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        )
        with torch.no_grad():
            logits = loaded.eval()(torch.tensor([IDS])).logits[0].numpy()
    return Truth(truth.config, truth.shapes, logits.astype(np.float32))


def main() -> None:
    """Write the golden files anew: ``python tests/support/tiny_families.py [NAME ...]``."""
    import sys

    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or FAMILIES:
        truth = compute(name)
        said = {"config": truth.config, "shapes": {k: list(v) for k, v in truth.shapes.items()}}
        text = json.dumps(said, indent=1)
        (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        np.save(GOLDEN / f"{name}.npy", truth.logits)


if __name__ == "__main__":
    main()
