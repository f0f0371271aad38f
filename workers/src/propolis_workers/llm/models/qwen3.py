"""Qwen 3 (Yang et al. 2025): Qwen 2 with norms of queries and keys in place of biases."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import HEAD_NORMS
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    return ModelConfig("qwen3", **read.usual())


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    usual = read.usual(head_dim=128, epsilon_default=1e-6)
    return ModelConfig("qwen3", **usual, windows=read.late_windows())


ARCHITECTURE: Final = Architecture(
    gguf=("qwen3",),
    folder=("qwen3",),
    names={**USUAL, **NORMS, **HEAD_NORMS, **GATED},
    from_gguf=from_gguf,
    from_folder=from_folder,
)
