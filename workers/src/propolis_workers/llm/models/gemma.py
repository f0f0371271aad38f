"""Gemma (2024): scaled embeddings, a gate of GELU, and norms whose checkpoints hold them less 1."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; llama.cpp's converter adds the 1 to norms."""
    usual = read.usual()
    scale = usual["width"] ** 0.5
    return ModelConfig("gemma", **usual, activation="gelu_tanh", embedding_scale=scale)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers; first configs named another GELU than was meant."""
    usual = read.usual(
        activations=("gelu_pytorch_tanh", "gelu"), head_dim=256, tied=True, epsilon_default=1e-6
    )
    scale = usual["width"] ** 0.5
    return ModelConfig(
        "gemma", **usual, activation="gelu_tanh", embedding_scale=scale, norm_offset=1.0
    )


ARCHITECTURE: Final = Architecture(
    gguf=("gemma",),
    folder=("gemma",),
    names={**USUAL, **NORMS, **GATED},
    from_gguf=from_gguf,
    from_folder=from_folder,
    exceeds_f16=True,
)
