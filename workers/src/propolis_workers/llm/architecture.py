"""
Which models the worker runs, and how their files describe them.

The next architecture of the llama family is a row in :data:`ARCHITECTURES`; one
with another structure is a row and a module beside ``llama.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import ConfigError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.llm.rope_scaling import LONGEST
from propolis_workers.llm.rope_scaling import PLAIN
from propolis_workers.llm.rope_scaling import extended
from propolis_workers.llm.rope_scaling import rope_from_config
from propolis_workers.llm.rope_scaling import rope_from_gguf
from propolis_workers.llm.rope_scaling import with_gguf_factors
from propolis_workers.settings import FileSettings


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
        rope_scaling: how the rotation frequencies are scaled: ``rope_type`` and the keys that
            ``propolis_workers.llm.rope`` reads for it.
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
    rope_scaling: Mapping[str, Any] = field(default_factory=lambda: PLAIN, hash=False, repr=False)
    tied: bool = True

    def __post_init__(self) -> None:
        sizes = (self.vocab_size, self.width, self.ffn_width, self.layers, self.heads)
        fits = (
            all(0 < n <= 1 << 24 for n in (*sizes, self.kv_heads, self.head_dim))
            and self.layers <= 4096
            and self.heads % self.kv_heads == 0
            and 0 < self.rope_dim <= self.head_dim
            and self.rope_dim % 2 == 0
            and 0 < self.context_length <= LONGEST
            and 0 < self.rope_base < math.inf
            and 0 <= self.norm_eps < math.inf
        )
        if not fits:
            msg = f"the model's settings do not describe a transformer: {self}"
            raise ModelError(msg)
        try:
            # At its longest, where dynamic's base is the largest.
            rope_frequencies(self.rope_dim, self.rope_base, self.rope_scaling, self.context_length)
        except ConfigError as exc:
            msg = f"the model's rope scaling cannot be computed: {exc}"
            raise ModelError(msg) from exc


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """
    The model's numbers, from GGUF metadata.

    Raises:
        UnsupportedModelError: no worker here runs the architecture, its experts or its
            rope scaling.
        ModelError: a number is missing or makes no sense.
    """
    read = FileSettings(file.path.name, file.metadata, _MODEL)
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
    rope_dim = read.count(f"{name}.rope.dimension_count", head_dim)
    config = ModelConfig(
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
        rope_dim=rope_dim,
        rope_interleaved=architecture.interleaved_in_gguf,
        rope_scaling=rope_from_gguf(read, file, rope_dim // 2),
    )
    return replace(
        config,
        context_length=extended(config.context_length, config.rope_scaling),
        rope_scaling=with_gguf_factors(
            read, file, config.rope_scaling, config.rope_dim, config.rope_base
        ),
    )


def config_from_folder(folder: SafetensorsFolder) -> ModelConfig:
    """
    The model's numbers, from a Hugging Face ``config.json``.

    Raises:
        UnsupportedModelError: no worker here runs the architecture, its quantisation or
            its rope scaling.
        ModelError: a number is missing or makes no sense.
    """
    read = FileSettings("config.json", folder.config, _MODEL)
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
    context = read.count("max_position_embeddings")
    base, scaling = rope_from_config(read, context)
    config = ModelConfig(
        architecture=name,
        vocab_size=read.count("vocab_size"),
        width=width,
        ffn_width=read.count("intermediate_size"),
        layers=read.count("num_hidden_layers"),
        heads=heads,
        kv_heads=read.count("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_eps=read.number("rms_norm_eps"),
        context_length=context,
        rope_base=base,
        rope_dim=head_dim,
        rope_scaling=scaling,
        tied=bool(folder.config.get("tie_word_embeddings")),
    )
    return replace(config, context_length=extended(context, scaling))


def _architecture(source: str, name: str) -> Architecture:
    found = ARCHITECTURES.get(name)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        msg = f"{source}: architecture {name!r} is not supported; supported: {known}"
        raise UnsupportedModelError(msg)
    return found
