"""OLMo 2 (2024): norms after attention and feed-forward alone, and of all heads together."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import UnsupportedModelError
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
    """
    The numbers.

    Raises:
        UnsupportedModelError: it is OLMo 3, whose files call themselves so too: it has windows, and
            rotations of two kinds.
    """
    if read.own_count("attention.sliding_window", 0):
        msg = f"{read.source}: OLMo 3 (olmo2 with windows); supported: OLMo 2"
        raise UnsupportedModelError(msg)
    return ModelConfig("olmo2", **read.usual())


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    return ModelConfig("olmo2", **read.usual(epsilon_default=1e-5))


ARCHITECTURE: Final = Architecture(
    gguf=("olmo2",),
    folder=("olmo2",),
    names={
        **USUAL,
        **HEAD_NORMS,
        **GATED,
        **layer_names(
            attention_post_norm=("post_attention_norm", "post_attention_layernorm"),
            ffn_post_norm=("post_ffw_norm", "post_feedforward_layernorm"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
)
