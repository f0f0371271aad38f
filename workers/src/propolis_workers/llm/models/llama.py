"""Llama 1 to 3 (Touvron et al. 2023), with or without biases."""

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
    """The numbers; llama.cpp's converter reorders q and k, so that rope pairs neighbours."""
    return ModelConfig("llama", **read.usual(interleaved=True))


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    return ModelConfig("llama", **read.usual(epsilon_default=1e-6))


ARCHITECTURE: Final = Architecture(
    gguf=("llama",),
    folder=("llama",),
    names={**USUAL, **NORMS, **GATED},
    from_gguf=from_gguf,
    from_folder=from_folder,
)
