"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases at queries, keys and values."""

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
    """The numbers."""
    return ModelConfig("qwen2", **read.usual())


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers; a window is of the layers from ``max_window_layers`` on, where it is used."""
    return ModelConfig("qwen2", **read.usual(epsilon_default=1e-6), windows=read.late_windows())


ARCHITECTURE: Final = Architecture(
    gguf=("qwen2",),
    folder=("qwen2",),
    names={**USUAL, **NORMS, **GATED},
    from_gguf=from_gguf,
    from_folder=from_folder,
)
