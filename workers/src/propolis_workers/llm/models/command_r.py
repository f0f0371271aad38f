"""Command R and R+ (2024): attention and network side by side, layer norms without biases."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import HEAD_NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    usual = read.usual(interleaved=True, layer_norm=True)
    scale = read.own_number("logit_scale", 1.0)
    return ModelConfig("command_r", **usual, norm="layer", parallel=True, logit_scale=scale)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.complete(rope_theta=500_000.0)
    usual = read.usual(interleaved=True, epsilon="layer_norm_eps", epsilon_default=1e-5, tied=True)
    scale = read.number("logit_scale", 0.0625)
    return ModelConfig("command_r", **usual, norm="layer", parallel=True, logit_scale=scale)


ARCHITECTURE: Final = Architecture(
    gguf=("command-r",),
    folder=("cohere",),
    names={
        **USUAL,
        **HEAD_NORMS,
        **GATED,
        **layer_names(attention_norm=("attn_norm", "input_layernorm")),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
)
