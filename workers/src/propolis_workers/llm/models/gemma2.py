"""Gemma 2 (2024): Gemma with norms on both sides, soft caps, and a window in every other layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.config import alternating


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings

# Layers of the 27B model, whose scores alone are scaled by the width of a query's share.
_LARGE: Final = 46


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; no key says how scores are scaled, but the number of layers, as in llama.cpp."""
    usual = read.usual()
    width, heads = usual["width"], usual["heads"]
    window = read.own_count("attention.sliding_window", 4096)
    return ModelConfig(
        "gemma2",
        **usual,
        activation="gelu_tanh",
        embedding_scale=width**0.5,
        windows=tuple(alternating(usual["layers"], 2, window)),
        score_scale=(width / heads) ** -0.5 if usual["layers"] == _LARGE else 0.0,
        score_cap=read.own_number("attn_logit_softcapping", 50.0),
        logit_cap=read.own_number("final_logit_softcapping", 30.0),
    )


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.complete(
        num_key_value_heads=4,
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    usual = read.usual(
        activations=("gelu_pytorch_tanh",), head_dim=256, tied=True, epsilon_default=1e-6
    )
    every_other = tuple(alternating(usual["layers"], 2, read.count("sliding_window", 4096)))
    return ModelConfig(
        "gemma2",
        **usual,
        activation="gelu_tanh",
        embedding_scale=usual["width"] ** 0.5,
        norm_offset=1.0,
        windows=read.windows() if read.values.get("layer_types") else every_other,
        score_scale=1 / math.sqrt(read.number("query_pre_attn_scalar", 256)),
        score_cap=read.number("attn_logit_softcapping", 0.0),
        logit_cap=read.number("final_logit_softcapping", 0.0),
    )


ARCHITECTURE: Final = Architecture(
    gguf=("gemma2",),
    folder=("gemma2",),
    names={
        **USUAL,
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
