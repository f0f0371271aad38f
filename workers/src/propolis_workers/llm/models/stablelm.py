"""StableLM 2 and Zephyr 3B (Bellagente et al. 2024): Llama with layer norms, turned in part."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; 12B, which computes side by side, has no norm before its network."""
    parallel = "blk.0.ffn_norm.weight" not in read.file.tensors
    usual = read.usual(layer_norm=True)
    return ModelConfig("stablelm", **usual, norm="layer", parallel=parallel)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    usual = read.usual(epsilon="layer_norm_eps", epsilon_default=1e-5, rotary_share=0.25)
    parallel = read.flag("use_parallel_residual", False)
    return ModelConfig("stablelm", **usual, norm="layer", parallel=parallel)


ARCHITECTURE: Final = Architecture(
    gguf=("stablelm",),
    folder=("stablelm",),
    names={
        **USUAL,
        **NORMS,
        **GATED,
        **layer_names(
            q_norm=("attn_q_norm", "self_attn.q_layernorm.norms.{}"),
            k_norm=("attn_k_norm", "self_attn.k_layernorm.norms.{}"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
)
