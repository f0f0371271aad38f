"""
Which models the worker runs, and how their files describe them.

The next architecture of the llama family is a row in :data:`ARCHITECTURES`; one
with another structure is a row and a module beside ``llama.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.settings import Settings


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.weights import GGUFFile
    from propolis_workers.weights import SafetensorsFolder


_MODEL: Final = "language model"  # for messages

# Our names of the weights -> (in GGUF files, in Hugging Face checkpoints).
LLAMA_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "embedding": ("token_embd", "model.embed_tokens"),
    "norm": ("output_norm", "model.norm"),
    "output": ("output", "lm_head"),
    # What divides the rope frequencies; in GGUF files alone, config.json says it in words.
    "rope_factors": ("rope_freqs", "rope_freqs"),
    "layers.{}.attention_norm": ("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    "layers.{}.q": ("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    "layers.{}.k": ("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
    "layers.{}.v": ("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    "layers.{}.o": ("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
    "layers.{}.ffn_norm": ("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
    "layers.{}.gate": ("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"),
    "layers.{}.up": ("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"),
    "layers.{}.down": ("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
}


# What config.json and propolis.rope call the four numbers of ``rope_llama3``.
LLAMA3_KEYS: Final = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """
    What a model's files do not say of its structure.

    Attributes:
        names: our weight names -> (GGUF name, Hugging Face name), without suffix.
        interleaved_in_gguf: whether GGUF files hold q and k reordered so that rope
            pairs neighbours (llama.cpp's converter does so for llama).
    """

    names: Mapping[str, tuple[str, str]]
    interleaved_in_gguf: bool


# By GGUF's general.architecture, which is also config.json's model_type.
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(LLAMA_NAMES, interleaved_in_gguf=True),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """
    The numbers that define a decoder-only transformer of the llama family.

    Attributes:
        architecture: a key of :data:`ARCHITECTURES`.
        vocab_size: rows of the embedding.
        width: elements of the residual stream.
        ffn_width: elements inside the feed-forward network.
        layers: number of blocks.
        heads: query heads.
        kv_heads: key-value heads; divides ``heads``.
        head_dim: elements of a head.
        norm_eps: of the RMS norms.
        context_length: tokens the model was made for.
        rope_base: base of the rotation frequencies.
        rope_dim: elements of a head that are rotated.
        rope_interleaved: whether rope pairs neighbours.
        rope_scale: positions are divided by it (linear scaling).
        rope_llama3: Llama 3.1's frequency scaling: factor, low and high frequency
            factor, original context; or None.
        tied: whether the embedding is the output too where the file has no other.
    """

    architecture: str
    vocab_size: int
    width: int
    ffn_width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    rope_base: float = 10_000.0
    rope_dim: int = 0
    rope_interleaved: bool = False
    rope_scale: float = 1.0
    rope_llama3: tuple[float, float, float, float] | None = None
    tied: bool = True

    def __post_init__(self) -> None:
        sizes = (self.vocab_size, self.width, self.ffn_width, self.layers, self.heads)
        factor, low, high, original = self.rope_llama3 or (1.0, 1.0, 4.0, 1.0)
        fits = (
            all(0 < n <= 1 << 24 for n in (*sizes, self.kv_heads, self.head_dim))
            and self.layers <= 4096
            and self.heads % self.kv_heads == 0
            and 0 < self.rope_dim <= self.head_dim
            and self.rope_dim % 2 == 0
            and 0 < self.context_length <= 1 << 28
            and all(0 < x < math.inf for x in (self.rope_base, self.rope_scale, factor, original))
            and 0 < low < high < math.inf
            and 0 <= self.norm_eps < math.inf
        )
        if not fits:
            msg = f"the model's settings do not describe a transformer: {self}"
            raise ModelError(msg)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """
    The model's numbers, from GGUF metadata.

    Raises:
        UnsupportedModelError: no worker here runs the architecture, its experts or its
            rope scaling.
        ModelError: a number is missing or makes no sense.
    """
    read = Settings(file.path.name, file.metadata, _MODEL)
    name = read.text("general.architecture")
    architecture = _architecture(read.source, name)
    heads = read.count(f"{name}.attention.head_count")
    width = read.count(f"{name}.embedding_length")
    head_dim = read.count(f"{name}.attention.key_length", width // max(heads, 1))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        msg = f"{read.source}: tensor token_embd.weight (vocabulary x width) is missing"
        raise ModelError(msg)
    experts = read.count(f"{name}.expert_count", 0)
    if experts:
        msg = f"{read.source}: a mixture of {experts} experts; supported: none"
        raise UnsupportedModelError(msg)
    # As llama.cpp: a factor without a type is linear; older files have another key for it.
    scaling = file.metadata.get(f"{name}.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        msg = f"{read.source}: rope scaling {scaling!r}; supported: none, linear, llama3"
        raise UnsupportedModelError(msg)
    factor = read.number(f"{name}.rope.scaling.factor", 0.0)
    factor = factor or read.number(f"{name}.rope.scale_linear", 0.0) or 1.0
    return ModelConfig(
        architecture=name,
        vocab_size=embedding.shape[0],
        width=width,
        ffn_width=read.count(f"{name}.feed_forward_length"),
        layers=read.count(f"{name}.block_count"),
        heads=heads,
        kv_heads=read.count(f"{name}.attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=read.number(f"{name}.attention.layer_norm_rms_epsilon"),
        context_length=read.count(f"{name}.context_length"),
        rope_base=read.number(f"{name}.rope.freq_base", 10_000.0),
        rope_dim=read.count(f"{name}.rope.dimension_count", head_dim),
        rope_interleaved=architecture.interleaved_in_gguf,
        rope_scale=factor if scaling == "linear" else 1.0,
    )


def config_from_folder(folder: SafetensorsFolder) -> ModelConfig:
    """
    The model's numbers, from a Hugging Face ``config.json``.

    Raises:
        UnsupportedModelError: no worker here runs the architecture, its quantisation or
            its rope scaling.
        ModelError: a number is missing or makes no sense.
    """
    read = Settings("config.json", folder.config, _MODEL)
    name = read.text("model_type")
    _architecture(read.source, name)
    if folder.config.get("attention_bias") or folder.config.get("mlp_bias"):
        msg = "config.json: attention_bias and mlp_bias are not supported; llama has neither"
        raise UnsupportedModelError(msg)
    quantised = folder.config.get("quantization_config")
    if quantised is not None:
        # Some methods keep the tensors' names and shapes, but not what the numbers mean.
        how = quantised.get("quant_method") if isinstance(quantised, dict) else None
        method = f"{how!r:.40}" if how else "an unknown method"
        msg = f"config.json: weights quantised by {method}; supported: plain ones, or a GGUF file"
        raise UnsupportedModelError(msg)
    activation = folder.config.get("hidden_act", "silu")
    if activation != "silu":
        msg = f"config.json: hidden_act {activation!r}; supported: silu"
        raise UnsupportedModelError(msg)
    heads = read.count("num_attention_heads")
    width = read.count("hidden_size")
    head_dim = read.count("head_dim", width // max(heads, 1))
    scaling = folder.config.get("rope_scaling") or folder.config.get("rope_parameters") or {}
    base, scale, llama3 = _hf_rope(scaling, read.number("rope_theta", 10_000.0))
    return ModelConfig(
        architecture=name,
        vocab_size=read.count("vocab_size"),
        width=width,
        ffn_width=read.count("intermediate_size"),
        layers=read.count("num_hidden_layers"),
        heads=heads,
        kv_heads=read.count("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=read.number("rms_norm_eps"),
        context_length=read.count("max_position_embeddings"),
        rope_base=base,
        rope_dim=head_dim,
        rope_scale=scale,
        rope_llama3=llama3,
        tied=bool(folder.config.get("tie_word_embeddings")),
    )


def _hf_rope(
    scaling: Any,
    theta: float,
) -> tuple[float, float, tuple[float, float, float, float] | None]:
    """Base, linear scale and llama3 factors of config.json's rope settings."""
    if not isinstance(scaling, dict):
        msg = f"config.json: rope_scaling is {scaling!r}, not an object"
        raise ModelError(msg)
    read = Settings("config.json rope_scaling", scaling, _MODEL)
    base = read.number("rope_theta", theta)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return base, 1.0, None
    if kind == "linear":
        return base, read.number("factor"), None
    if kind == "llama3":
        factor, low, high, original = (read.number(key) for key in LLAMA3_KEYS)
        return base, 1.0, (factor, low, high, original)
    msg = f"config.json: rope scaling {kind!r}; supported: default, linear, llama3"
    raise UnsupportedModelError(msg)


def _architecture(source: str, name: str) -> Architecture:
    found = ARCHITECTURES.get(name)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        msg = f"{source}: architecture {name!r} is not supported; supported: {known}"
        raise UnsupportedModelError(msg)
    return found
