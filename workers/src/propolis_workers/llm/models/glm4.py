"""GLM 4 (2024) and 4-0414: Llama with norms on both sides, biases, and half of each head turned."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; of a model that sees, the converter reorders q and k to halves."""
    sections = read.values.get(read.own("rope.dimension_sections"))
    seeing = isinstance(sections, list) and len(sections) > 1 and bool(sections[0] and sections[1])
    return ModelConfig("glm4", **read.usual(interleaved=not seeing))


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.complete(num_key_value_heads=2, rms_norm_eps=1.5625e-7)
    return ModelConfig("glm4", **read.usual(interleaved=True, rotary_share=0.5))


ARCHITECTURE: Final = Architecture(
    gguf=("glm4",),
    folder=("glm4",),
    names={
        **USUAL,
        **layer_names(
            attention_norm=("attn_norm", "input_layernorm"),
            attention_post_norm=("post_attention_norm", "post_self_attn_layernorm"),
            ffn_norm=("ffn_norm", "post_attention_layernorm"),
            ffn_post_norm=("post_ffw_norm", "post_mlp_layernorm"),
            gate_up=("ffn_up", "mlp.gate_up_proj"),
            down=("ffn_down", "mlp.down_proj"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
    exceeds_f16=True,
)
