"""DeepSeek V2 (2024) and V3, with latent attention and experts; also V2-Lite and R1."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import UnsupportedModelError
from propolis_workers.llm.architecture import EXPERTS
from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import Experts
from propolis_workers.llm.config import Latent
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.rearranged import Piece


if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings

_V3: Final = "deepseek_v3"
_DEFAULTS: Final[Mapping[bool, Mapping[str, Any]]] = {  # of V2, and of V3
    False: {
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "q_lora_rank": 1536,
    },
    True: {
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
    },
}
_SIGMOID: Final = 2  # llama.cpp's number of it


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; of both kinds of files, with kv_b whole and in two parts."""
    if read.own_number("attention.temperature_scale", 0.0):
        msg = f"{read.source}: scores scaled by position (Mistral Large 3); supported: none"
        raise UnsupportedModelError(msg)
    usual = read.usual(interleaved=True)
    usual["head_dim"] = read.own_count("attention.key_length_mla", usual["head_dim"])
    usual["value_dim"] = read.own_count("attention.value_length_mla", usual["value_dim"])
    usual["kv_heads"] = usual["heads"]
    width = read.own_count("expert_feed_forward_length")
    # Only scores by sigmoid have a bias; some files do not say more.
    biased = any(name.endswith("exp_probs_b.bias") for name in read.file.tensors)
    sigmoid = read.own_count("expert_gating_func", _SIGMOID if biased else 1) == _SIGMOID
    groups = read.own_count("expert_group_count", 1)
    experts = Experts(
        read.own_count("expert_count"),
        read.own_count("expert_used_count"),
        width,
        shared_width=width * read.own_count("expert_shared_count", 0),
        renormalize=read.flag(read.own("expert_weights_norm"), False),
        dense=read.own_count("leading_dense_block_count", 0),
        scale=read.own_number("expert_weights_scale", 1.0) or 1.0,
        score="sigmoid" if sigmoid else "softmax",
        groups=groups,
        groups_used=read.own_count("expert_group_used_count", groups),
        group_best=2 if sigmoid and groups > 1 else 1,
    )
    latent = Latent(
        read.own_count("attention.kv_lora_rank"), read.own_count("attention.q_lora_rank", 0)
    )
    (rope,) = usual["ropes"]
    # A tenth of mscale_all_dim stands here, and rotations are of amplitude 1, as in llama.cpp.
    weight = 10 * rope.scaling.get("mscale_all_dim", 0.0)
    if weight:
        words = {key: value for key, value in rope.scaling.items() if not key.startswith("mscale")}
        usual["ropes"] = (replace(rope, scaling=words | {"attention_factor": 1.0}),)
    return ModelConfig("deepseek", **_scaled(usual, weight), experts=experts, latent=latent)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    third = read.text("model_type") == _V3
    read.complete(**_DEFAULTS[third])
    turned = read.count("qk_rope_head_dim", 64)
    head_dim = read.count("qk_nope_head_dim", 128) + turned
    usual = read.usual(epsilon_default=1e-6)
    usual |= {
        "head_dim": head_dim,
        "value_dim": read.count("v_head_dim", 128),
        "kv_heads": usual["heads"],
        "ropes": (
            read.rope(
                turned,
                usual["context_length"],
                interleaved=read.flag("rope_interleave", True),
            ),
        ),
    }
    grouped = third or read.text("topk_method", "greedy") == "group_limited_greedy"
    groups = (read.count("n_group", 1) or 1) if grouped else 1
    width = read.count("moe_intermediate_size")
    experts = Experts(
        read.count("n_routed_experts"),
        read.count("num_experts_per_tok"),
        width,
        shared_width=width * read.count("n_shared_experts", 0),
        # transformers leaves V2's weights as they are, whatever norm_topk_prob says.
        renormalize=third and read.flag("norm_topk_prob", True),
        dense=read.count("first_k_dense_replace", 0),
        scale=read.number("routed_scaling_factor", 1.0),
        score="sigmoid" if third else "softmax",
        groups=groups,
        groups_used=(read.count("topk_group", groups) or groups) if grouped else 1,
        group_best=2 if third and groups > 1 else 1,
    )
    latent = Latent(read.count("kv_lora_rank", 512), read.count("q_lora_rank", 0))
    weight = usual["ropes"][0].scaling.get("mscale_all_dim", 0.0)
    return ModelConfig("deepseek", **_scaled(usual, weight), experts=experts, latent=latent)


def _scaled(usual: dict[str, Any], weight: float) -> dict[str, Any]:
    """With YaRN, scores grow as the model's ``mscale_all_dim`` says."""
    factor = usual["ropes"][0].scaling.get("factor", 1.0)
    grown = 0.1 * weight * math.log(factor) + 1 if weight and factor > 1 else 1.0
    return usual | {"score_scale": usual["head_dim"] ** -0.5 * grown * grown}


def filed(config: ModelConfig, names: Mapping[str, str]) -> dict[str, Piece]:
    """Newer files hold kv_b in two parts, of which that of keys is transposed, head by head."""
    assert config.latent is not None  # noqa: S101  each model of this architecture has it
    heads, values, latent = config.heads, config.values_dim, config.latent.keys
    plain = config.head_dim - config.ropes[0].dim
    theirs = names["layers.{}.kv_b"]

    def each(whole: np.ndarray) -> np.ndarray:
        return whole.reshape(heads, plain + values, latent)

    def keys(whole: np.ndarray) -> np.ndarray:
        return each(whole)[:, :plain].swapaxes(1, 2)

    def of_values(whole: np.ndarray) -> np.ndarray:
        return each(whole)[:, plain:]

    found = {}
    for layer in range(config.layers):
        whole = theirs.format(layer) + ".weight"
        found[f"blk.{layer}.attn_k_b.weight"] = Piece(whole, (heads, latent, plain), keys)
        found[f"blk.{layer}.attn_v_b.weight"] = Piece(whole, (heads, values, latent), of_values)
    return found


ARCHITECTURE: Final = Architecture(
    gguf=("deepseek2",),
    folder=("deepseek_v2", _V3),
    names={
        **USUAL,
        **NORMS,
        **GATED,
        **EXPERTS,
        **layer_names(
            q_a=("attn_q_a", "self_attn.q_a_proj"),
            q_a_norm=("attn_q_a_norm", "self_attn.q_a_layernorm"),
            q_b=("attn_q_b", "self_attn.q_b_proj"),
            kv_a=("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
            kv_a_norm=("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
            kv_b=("attn_kv_b", "self_attn.kv_b_proj"),
            k_b=("attn_k_b", ""),
            v_b=("attn_v_b", ""),
            router_bias=("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
            shared__gate=("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
            shared__up=("ffn_up_shexp", "mlp.shared_experts.up_proj"),
            shared__down=("ffn_down_shexp", "mlp.shared_experts.down_proj"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
    filed=filed,
)
