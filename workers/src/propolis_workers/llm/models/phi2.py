"""Phi 1 and 2 (Li et al. 2023): attention and a plain network side by side, layer norms, biases."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    usual = read.usual(layer_norm=True)
    return ModelConfig(
        "phi2", **usual, norm="layer", activation="gelu_tanh", gated=False, parallel=True
    )


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.complete(layer_norm_eps=1e-5)
    usual = read.usual(epsilon="layer_norm_eps", activations=("gelu_new",), rotary_share=0.5)
    return ModelConfig(
        "phi2", **usual, norm="layer", activation="gelu_tanh", gated=False, parallel=True
    )


ARCHITECTURE: Final = Architecture(
    gguf=("phi2",),
    folder=("phi",),
    names={
        **USUAL,
        "norm": ("output_norm", "model.final_layernorm"),
        **layer_names(
            attention_norm=("attn_norm", "input_layernorm"),
            qkv=("attn_qkv", ""),
            o=("attn_output", "self_attn.dense"),
            q_norm=("", "self_attn.q_layernorm"),
            k_norm=("", "self_attn.k_layernorm"),
            up=("ffn_up", "mlp.fc1"),
            down=("ffn_down", "mlp.fc2"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
)
