"""
Mistral 7B (Jiang et al. 2023): Llama with a window of keys.

GGUF files of it call themselves ``llama``, and have no window there.
"""

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
    return ModelConfig("mistral", **read.usual(interleaved=True), windows=read.windows())


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers; null for a window is none."""
    read.complete(num_key_value_heads=8, rms_norm_eps=1e-6, sliding_window=4096)
    return ModelConfig("mistral", **read.usual(), windows=read.windows())


ARCHITECTURE: Final = Architecture(
    gguf=("llama",),
    folder=("mistral",),
    names={**USUAL, **NORMS, **GATED},
    from_gguf=from_gguf,
    from_folder=from_folder,
    special=lambda read: read.own_count("attention.sliding_window", 0) > 0,
)
