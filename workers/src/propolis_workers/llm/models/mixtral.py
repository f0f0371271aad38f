"""Mixtral (Jiang et al. 2024): Mistral with experts; GGUF files of it call themselves llama."""

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
    """The numbers."""
    usual = read.usual(interleaved=True)
    experts = Experts(
        read.own_count("expert_count"), read.own_count("expert_used_count"), usual["ffn_width"]
    )
    return ModelConfig("mixtral", **usual, experts=experts)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.complete(num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1_000_000.0)
    usual = read.usual()
    experts = Experts(
        read.count("num_local_experts", 8), read.count("num_experts_per_tok", 2), usual["ffn_width"]
    )
    return ModelConfig("mixtral", **usual, windows=read.windows(), experts=experts)


ARCHITECTURE: Final = Architecture(
    gguf=("llama",),
    folder=("mixtral",),
    names={
        **USUAL,
        **NORMS,
        **EXPERTS,
        **layer_names(
            router=("ffn_gate_inp", "block_sparse_moe.gate"),
            experts__gate=("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
            experts__up=("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
            experts__down=("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
    special=lambda read: read.own_count("expert_count", 0) > 0,
)
