"""Granite 3 (2024): Llama whose embeddings, scores, residuals and logits are scaled."""

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
    """The numbers; q and k are reordered as llama's."""
    return ModelConfig(
        "granite",
        **read.usual(interleaved=True),
        embedding_scale=read.own_number("embedding_scale", 1.0),
        residual_scale=read.own_number("residual_scale", 1.0),
        score_scale=read.own_number("attention.scale", 0.0),
        logit_scale=read.reciprocal(read.own("logit_scale")),
    )


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    return ModelConfig(
        "granite",
        **read.usual(epsilon_default=1e-6),
        embedding_scale=read.number("embedding_multiplier", 1.0),
        residual_scale=read.number("residual_multiplier", 1.0),
        score_scale=read.number("attention_multiplier", 1.0),
        logit_scale=read.reciprocal("logits_scaling"),
    )


ARCHITECTURE: Final = Architecture(
    gguf=("granite",),
    folder=("granite",),
    names={**USUAL, **NORMS, **GATED},
    from_gguf=from_gguf,
    from_folder=from_folder,
)
