"""Qwen 3 with experts (Yang et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import EXPERTS
from propolis_workers.llm.architecture import HEAD_NORMS
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.config import Experts
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    experts = Experts(
        read.own_count("expert_count"),
        read.own_count("expert_used_count"),
        read.own_count("expert_feed_forward_length"),
    )
    return ModelConfig("qwen3_moe", **read.usual(), experts=experts)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.refuse_dense_layers()
    read.complete(num_key_value_heads=4, rms_norm_eps=1e-6)
    experts = Experts(
        read.count("num_experts", read.count("num_local_experts", 128)),
        read.count("num_experts_per_tok", 8),
        read.count("moe_intermediate_size", 768),
        renormalize=read.flag("norm_topk_prob", False),
    )
    return ModelConfig("qwen3_moe", **read.usual(), windows=read.late_windows(), experts=experts)


ARCHITECTURE: Final = Architecture(
    gguf=("qwen3moe",),
    folder=("qwen3_moe",),
    names={**USUAL, **NORMS, **HEAD_NORMS, **EXPERTS},
    from_gguf=from_gguf,
    from_folder=from_folder,
)
