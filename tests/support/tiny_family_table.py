"""The tiny models of each architecture: transformers' settings, and what GGUF files say of them."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    import numpy as np

    Weights = dict[str, np.ndarray]

VOCAB = 96

COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Family:
    """
    A tiny model.

    Attributes:
        architecture: its name in ``propolis_workers.llm.models``.
        model_type: transformers' name of its config.
        settings: of the config, beside ``COMMON``.
        gguf: the architecture that its GGUF file names.
        metadata: of that file, beside what all have: key without the architecture -> value, or a
            key of the config in braces.
        permuted: whether q and k are reordered there as llama.cpp's converter does.
        convert: what else the converter changes: (gguf name, values) -> values.
        arrange: what it makes of the checkpoint's tensors before it names them; what it names
            itself begins with ``blk.``.
    """

    architecture: str
    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    gguf: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    permuted: bool = False
    convert: Callable[[str, np.ndarray], np.ndarray] | None = None
    arrange: Callable[[Weights, dict[str, Any]], Weights] | None = None


def _norms_plus_one(name: str, values: np.ndarray) -> np.ndarray:
    """As the converter of Gemma does."""
    return values + 1 if "norm" in name else values


def _latent_numbers(nope: int, rope: int, value: int, *, queries: int) -> dict[str, int]:
    """What newer files say of latent attention."""
    latent = 24
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + rope,
        "attention.value_length": latent,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": value,
        "attention.kv_lora_rank": latent,
        "attention.q_lora_rank": queries,
        "rope.dimension_count": rope,
    }


def _latent_parts(weights: Weights, config: dict[str, Any]) -> Weights:
    """As newer converters take kv_b apart, and name the router's bias."""
    found = {}
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    for name, values in weights.items():
        if "kv_b_proj" in name:
            both = values.reshape(heads, -1, values.shape[-1])
            found[name.replace("kv_b", "k_b")] = both[:, :nope].swapaxes(1, 2).copy()
            found[name.replace("kv_b", "v_b")] = both[:, nope:].copy()
        else:
            found[name.replace("correction_bias", "correction.bias")] = values
    return found


def _untangled(weights: Weights, config: dict[str, Any]) -> Weights:
    """As the converter of gpt-oss takes gates and the rest apart, and names what has no suffix."""
    del config
    found = {}
    for name, values in weights.items():
        layer = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
        suffix = ".bias" if name.endswith("bias") else ".weight"
        turned = values.swapaxes(1, 2) if values.ndim == 3 else values
        if "gate_up_proj" in name:
            found[f"{layer}ffn_gate_exps{suffix}"] = turned[:, 0::2].copy()
            found[f"{layer}ffn_up_exps{suffix}"] = turned[:, 1::2].copy()
        elif "experts.down_proj" in name:
            found[f"{layer}ffn_down_exps{suffix}"] = turned.copy()
        elif name.endswith("sinks"):
            found[f"{layer}attn_sinks.weight"] = values
        else:
            found[name] = values
    return found


def _squeezed_taps(name: str, values: np.ndarray) -> np.ndarray:
    """As the converter of LFM2 does."""
    return values.squeeze(1) if "shortconv.conv" in name else values


_MIXTURE: Mapping[str, Any] = {"expert_count": 4, "expert_used_count": 2}
_GEMMA = {"tie_word_embeddings": True, "head_dim": 32}

FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", "llama", gguf="llama", permuted=True),
    "llama-biased": Family(
        "llama",
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        gguf="llama",
        permuted=True,
    ),
    "mistral": Family(
        "mistral",
        "mistral",
        {"sliding_window": 9},
        gguf="llama",
        metadata={"attention.sliding_window": 9},
        permuted=True,
    ),
    "mixtral": Family(
        "mixtral",
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        gguf="llama",
        metadata=_MIXTURE,
        permuted=True,
    ),
    "qwen2": Family("qwen2", "qwen2", gguf="qwen2"),
    "qwen2-window": Family(
        "qwen2",
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": Family("qwen3", "qwen3", {"head_dim": 32}, gguf="qwen3"),
    "gemma": Family("gemma", "gemma", _GEMMA, gguf="gemma", convert=_norms_plus_one),
    "gemma2": Family(
        "gemma2",
        "gemma2",
        {**_GEMMA, "sliding_window": 8, "query_pre_attn_scalar": 32},
        gguf="gemma2",
        metadata={
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        convert=_norms_plus_one,
    ),
    "phi3": Family(
        "phi3",
        "phi3",
        {"sliding_window": 11},
        gguf="phi3",
        metadata={"attention.sliding_window": 11},
    ),
    "gemma3": Family(
        "gemma3",
        "gemma3_text",
        {
            **_GEMMA,
            "num_hidden_layers": 7,
            "sliding_window": 8,
            "query_pre_attn_scalar": 32,
            "rope_theta": None,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "linear",
                    "factor": 8.0,
                    "rope_theta": 1_000_000.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
        gguf="gemma3",
        metadata={
            "attention.sliding_window": 8,
            "rope.freq_base": 1_000_000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        convert=_norms_plus_one,
    ),
    "phi2": Family("phi2", "phi", gguf="phi2"),
    "phi2-normed": Family("phi2", "phi", {"qk_layernorm": True}),
    "stablelm": Family("stablelm", "stablelm", {"use_qkv_bias": True}, gguf="stablelm"),
    "stablelm-parallel": Family(
        "stablelm", "stablelm", {"use_parallel_residual": True, "qk_layernorm": True}
    ),
    "starcoder2": Family(
        "starcoder2",
        "starcoder2",
        {"sliding_window": 10},
        gguf="starcoder2",
        metadata={"attention.sliding_window": 10},
    ),
    "glm4": Family("glm4", "glm4", {"head_dim": 16}, gguf="glm4"),
    "command_r": Family(
        "command_r",
        "cohere",
        {"tie_word_embeddings": True},
        gguf="command-r",
        metadata={"logit_scale": 0.0625},
    ),
    "command_r-plus": Family(
        "command_r", "cohere", {"tie_word_embeddings": True, "use_qk_norm": True}
    ),
    "qwen2_moe": Family(
        "qwen2_moe",
        "qwen2_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 40,
        },
        gguf="qwen2moe",
        metadata={
            **_MIXTURE,
            "expert_feed_forward_length": 48,
            "expert_shared_feed_forward_length": 40,
        },
    ),
    "qwen3_moe": Family(
        "qwen3_moe",
        "qwen3_moe",
        {
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
        gguf="qwen3moe",
        metadata={**_MIXTURE, "expert_feed_forward_length": 48},
    ),
    "granite": Family(
        "granite",
        "granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.1,
        },
        gguf="granite",
        metadata={
            "embedding_scale": 3.0,
            "logit_scale": 4.0,
            "residual_scale": 0.5,
            "attention.scale": 0.1,
        },
        permuted=True,
    ),
    "falcon": Family(
        "falcon",
        "falcon",
        {"multi_query": True, "tie_word_embeddings": True},
        gguf="falcon",
        metadata={"attention.head_count_kv": 1, "feed_forward_length": 256},
    ),
    "falcon-grouped": Family(
        "falcon",
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "deepseek": Family(
        "deepseek",
        "deepseek_v2",
        {
            "q_lora_rank": None,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
        },
        gguf="deepseek2",
        metadata={
            "attention.key_length": 24,
            "attention.value_length": 20,
            "attention.kv_lora_rank": 24,
            "rope.dimension_count": 8,
            "leading_dense_block_count": 1,
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 2,
        },
    ),
    "deepseek-grouped": Family(
        "deepseek",
        "deepseek_v2",
        {
            "q_lora_rank": 28,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.0,
            "num_key_value_heads": 4,
        },
    ),
    "deepseek-v3": Family(
        "deepseek",
        "deepseek_v3",
        {
            "q_lora_rank": 28,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "mscale": 0.8,
                "mscale_all_dim": 0.8,
                "original_max_position_embeddings": 32,
            },
        },
        gguf="deepseek2",
        metadata={
            **_latent_numbers(16, 8, 16, queries=28),
            "leading_dense_block_count": 1,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 1,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_log_multiplier": 0.08,
        },
        arrange=_latent_parts,
    ),
    "gpt_oss": Family(
        "gpt_oss",
        "gpt_oss",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150_000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        },
        gguf="gpt-oss",
        metadata={
            **_MIXTURE,
            "expert_feed_forward_length": 96,
            "attention.sliding_window": 8,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
        arrange=_untangled,
    ),
    "lfm2": Family(
        "lfm2",
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_multiple_of": 16,
            "tie_word_embeddings": True,
        },
        gguf="lfm2",
        metadata={
            "attention.head_count_kv": [0, 2, 0, 0],
            "feed_forward_length": 64,
            "shortconv.l_cache": 3,
        },
        convert=_squeezed_taps,
    ),
    "olmo2": Family("olmo2", "olmo2", gguf="olmo2"),
    "smollm3": Family(
        "smollm3", "smollm3", {"num_hidden_layers": 5}, gguf="smollm3", permuted=True
    ),
}
