"""Phi 3 and 3.5 (Abdin et al. 2024): Llama whose products of one input lie as one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    return ModelConfig("phi3", **read.usual(), windows=read.windows())


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    return ModelConfig("phi3", **read.usual(epsilon_default=1e-5), windows=read.windows())


ARCHITECTURE: Final = Architecture(
    gguf=("phi3",),
    folder=("phi3",),
    names={
        **USUAL,
        **NORMS,
        **layer_names(
            qkv=("attn_qkv", "self_attn.qkv_proj"),
            gate_up=("ffn_up", "mlp.gate_up_proj"),
            down=("ffn_down", "mlp.down_proj"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
)
