"""Qwen 1.5 and 2 with experts (2024): Qwen 2 with a mixture and what all tokens share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import EXPERTS
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import Experts
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; files without the experts' widths have those of one network of all used."""
    usual = read.usual()
    used = read.own_count("expert_used_count")
    width = read.own_count("expert_feed_forward_length", usual["ffn_width"] // max(used, 1))
    experts = Experts(
        read.own_count("expert_count"),
        used,
        width,
        shared_width=read.own_count("expert_shared_feed_forward_length", usual["ffn_width"]),
        renormalize=False,
    )
    return ModelConfig("qwen2_moe", **usual, experts=experts)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.refuse_dense_layers()
    experts = Experts(
        read.count("num_experts", read.count("num_local_experts", 60)),
        read.count("num_experts_per_tok", 4),
        read.count("moe_intermediate_size", 1408),
        shared_width=read.count("shared_expert_intermediate_size", 5632),
        renormalize=read.flag("norm_topk_prob", False),
    )
    usual = read.usual(epsilon_default=1e-6)
    return ModelConfig("qwen2_moe", **usual, windows=read.late_windows(), experts=experts)


ARCHITECTURE: Final = Architecture(
    gguf=("qwen2moe",),
    folder=("qwen2_moe",),
    names={
        **USUAL,
        **NORMS,
        **EXPERTS,
        **layer_names(
            shared__gate=("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            shared__up=("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            shared__down=("ffn_down_shexp", "mlp.shared_expert.down_proj"),
            shared_gate=("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
)
