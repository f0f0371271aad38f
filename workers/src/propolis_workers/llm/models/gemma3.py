"""Gemma 3 (2025): Gemma 2 with norms of queries and keys, and rotations of two kinds of layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import HEAD_NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.config import Rope
from propolis_workers.llm.config import alternating


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


# Layers of the 27B model, whose scores alone are scaled by the width of a query's share.
_LARGE: Final = 62
_PERIOD: Final = 6
_LOCAL_BASE: Final = 10_000.0


def _kinds(windows: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(window > 0) for window in windows)


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; what no key says is as in llama.cpp."""
    usual = read.usual()
    (rope,) = usual.pop("ropes")
    layers, width, heads = usual["layers"], usual["width"], usual["heads"]
    windows = tuple(alternating(layers, _PERIOD, read.own_count("attention.sliding_window", 0)))
    return ModelConfig(
        "gemma3",
        **usual,
        ropes=(rope, Rope(rope.dim, read.own_number("rope.freq_base_swa", _LOCAL_BASE))),
        rope_of=_kinds(windows),
        windows=windows,
        activation="gelu_tanh",
        embedding_scale=width**0.5,
        score_scale=(width / heads) ** -0.5 if layers == _LARGE else 0.0,
        logit_cap=read.own_number("final_logit_softcapping", 0.0),
    )


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers, as transformers 4 or 5 wrote them, or left to their defaults."""
    read.complete(
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=262_208,
        max_position_embeddings=131_072,
        rope_theta=1_000_000.0,
        sliding_window=4096,
    )
    usual = read.usual(
        activations=("gelu_pytorch_tanh",),
        head_dim=256,
        tied=True,
        epsilon_default=1e-6,
        kind="full_attention",
    )
    (rope,) = usual.pop("ropes")
    layers = usual["layers"]
    if read.values.get("layer_types"):
        windows = read.windows()
    else:
        period = read.count("sliding_window_pattern", _PERIOD)
        windows = tuple(alternating(layers, max(period, 1), read.count("sliding_window", 4096)))
    local = Rope(rope.dim, read.number("rope_local_base_freq", _LOCAL_BASE))
    if isinstance(read.values.get("rope_parameters"), dict):
        head_dim, context = usual["head_dim"], usual["context_length"]
        local = read.rope(head_dim, context, interleaved=False, kind="sliding_attention")
    return ModelConfig(
        "gemma3",
        **usual,
        ropes=(rope, local),
        rope_of=_kinds(windows),
        windows=windows,
        activation="gelu_tanh",
        embedding_scale=usual["width"] ** 0.5,
        norm_offset=1.0,
        score_scale=1 / math.sqrt(read.number("query_pre_attn_scalar", 256)),
        score_cap=read.number("attn_logit_softcapping", 0.0),
        logit_cap=read.number("final_logit_softcapping", 0.0),
    )


ARCHITECTURE: Final = Architecture(
    gguf=("gemma3",),
    folder=("gemma3_text", "gemma3"),
    names={
        **USUAL,
        **HEAD_NORMS,
        **GATED,
        **layer_names(
            attention_norm=("attn_norm", "input_layernorm"),
            attention_post_norm=("post_attention_norm", "post_attention_layernorm"),
            ffn_norm=("ffn_norm", "pre_feedforward_layernorm"),
            ffn_post_norm=("post_ffw_norm", "post_feedforward_layernorm"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
    exceeds_f16=True,
)
