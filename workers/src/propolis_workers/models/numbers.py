"""The numbers of a model as GGUF metadata, and whether a file says the same as its folder."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis_workers.llm.models import architectures
from propolis_workers.llm.rope import rope_frequencies


if TYPE_CHECKING:
    from propolis_workers.llm.config import Latent
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.config import Rope

# Architectures whose files say how much they are scaled; of others it is known.
_SCALED: Final = ("granite", "command_r")
_YARN: Final = {
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "attention_factor": "yarn_attn_factor",
    "mscale_all_dim": "yarn_log_multiplier",
}
_GATES: Final = {"softmax": 1, "sigmoid": 2}  # llama.cpp's numbers of them
_TRAINED: Final = "original_max_position_embeddings"


def metadata_of(config: ModelConfig) -> dict[str, Any]:
    """
    What a GGUF file says of a model, by keys without the architecture's name.

    Args:
        config: its numbers, as read from its folder.
    """
    rms = "rms_" if config.norm == "rms" else ""
    said: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "embedding_length": config.width,
        "block_count": config.layers,
        "feed_forward_length": config.ffn_width,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.values_dim,
        f"attention.layer_norm_{rms}epsilon": config.norm_eps,
    }
    for name, rope in zip(("", "_swa"), config.ropes, strict=False):
        said[f"rope.freq_base{name}"] = float(rope.base)
    if config.ropes:
        said["rope.dimension_count"] = config.ropes[0].dim
        said |= _scaling(config.ropes[0])
    if any(config.windows):
        said["attention.sliding_window"] = max(config.windows)
    for key, number in (
        ("attn_logit_softcapping", config.score_cap),
        ("final_logit_softcapping", config.logit_cap),
    ):
        if number:
            said[key] = float(number)
    if config.architecture in _SCALED:
        granite = config.architecture == "granite"
        said["logit_scale"] = 1 / config.logit_scale if granite else float(config.logit_scale)
        said["embedding_scale"] = float(config.embedding_scale)
        said["residual_scale"] = float(config.residual_scale)
        said["attention.scale"] = float(config.score_scale)
    if config.experts is not None:
        said["expert_count"] = config.experts.count
        said["expert_used_count"] = config.experts.used
        said["expert_feed_forward_length"] = config.experts.width
        if config.experts.shared_width:
            said["expert_shared_feed_forward_length"] = config.experts.shared_width
    if any(config.convolved):
        heads = [0 if convolved else config.kv_heads for convolved in config.convolved]
        said |= {"attention.head_count_kv": heads, "shortconv.l_cache": config.conv_taps}
    return said if config.latent is None else said | _latent(config, config.latent)


def rope_tensors(config: ModelConfig) -> dict[str, np.ndarray]:
    """Tensors that say how rotations are scaled, f32, by their names in GGUF files."""
    if not config.ropes:
        return {}
    rope = config.ropes[0]
    kind = rope.scaling["rope_type"]
    if kind == "llama3":
        scaled, _ = rope_frequencies(rope.dim, rope.base, rope.scaling)
        plain, _ = rope_frequencies(rope.dim, rope.base)
        return {"rope_freqs.weight": (plain / scaled).astype(np.float32)}
    if kind == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(rope.scaling[f"{which}_factor"], np.float32)
            for which in ("short", "long")
        }
    return {}


def differences(wanted: ModelConfig, found: ModelConfig) -> list[str]:
    """
    What a file says otherwise than the folder that it was made of.

    How q and k are arranged, and whether norms hold an offset, may differ: their weights do too.
    """
    one, two = _comparable(wanted), _comparable(found)
    differ = [
        f"{name}: {one[name]!r:.60} in the folder, {two[name]!r:.60} in the file"
        for name in one
        if name != "ropes" and not _same(one[name], two[name])
    ]
    ropes = [*zip(wanted.ropes, found.ropes, strict=False)]
    alike = len(wanted.ropes) == len(found.ropes)
    if not alike or not all(_turn_alike(*pair, wanted.context_length) for pair in ropes):
        differ.append("how queries and keys are turned")
    return differ


def _latent(config: ModelConfig, latent: Latent) -> dict[str, Any]:
    """What DeepSeek's files say; of latent attention llama.cpp caches one head."""
    rope = config.ropes[0]
    said: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.key_length": latent.keys + rope.dim,
        "attention.value_length": latent.keys,
        "attention.key_length_mla": config.head_dim,
        "attention.value_length_mla": config.values_dim,
        "attention.kv_lora_rank": latent.keys,
    }
    if latent.queries:
        said["attention.q_lora_rank"] = latent.queries
    weight = rope.scaling.get("mscale_all_dim", 0.0)
    if weight:
        said["rope.scaling.yarn_log_multiplier"] = 0.1 * weight
    experts = config.experts
    if experts is not None:
        said |= {
            "leading_dense_block_count": experts.dense,
            "expert_shared_count": experts.shared_width // experts.width,
            "expert_weights_scale": float(experts.scale),
            "expert_weights_norm": experts.renormalize,
            "expert_gating_func": _GATES[experts.score],
        }
        if experts.groups > 1:
            said["expert_group_count"] = experts.groups
            said["expert_group_used_count"] = experts.groups_used
    return said


def _scaling(rope: Rope) -> dict[str, Any]:
    kind, scaling = rope.scaling["rope_type"], rope.scaling
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
    said: dict[str, Any] = {}
    if kind == "yarn":
        said = {"rope.scaling.type": "yarn", "rope.scaling.factor": float(scaling["factor"])}
        for ours, theirs in _YARN.items():
            if scaling.get(ours):
                said[f"rope.scaling.{theirs}"] = float(scaling[ours])
    if kind == "longrope":
        _, amplitude = rope_frequencies(rope.dim, rope.base, scaling)
        said = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": float(amplitude)}
    if said:
        said["rope.scaling.original_context_length"] = int(scaling[_TRAINED])
    return said


def _comparable(config: ModelConfig) -> dict[str, Any]:
    said = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in ("architecture", "norm_offset", "tied"):
        del said[name]
    # Of several architectures that share a name, those that are computed alike are one.
    said["network"] = architectures()[config.architecture].network
    said["value_dim"] = config.values_dim
    if config.experts is not None:  # files have f32
        scale = float(np.float32(config.experts.scale))
        said["experts"] = dataclasses.replace(config.experts, scale=scale)
    said["windows"] = config.windows if any(config.windows) else ()
    said["rope_of"] = config.rope_of if any(config.rope_of) else ()
    said["score_scale"] = config.score_scale or config.head_dim**-0.5
    # A window as long as the context hides nothing.
    if min(said["windows"], default=0) >= config.context_length:
        said["windows"] = ()
    return said


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) or isinstance(two, float):
        return math.isclose(one, two, rel_tol=1e-6)  # files have f32
    return bool(one == two)


def _turn_alike(one: Rope, two: Rope, context: int) -> bool:
    if one.dim != two.dim:
        return False
    for length in (1, context):
        (mine, loud), (theirs, other) = (
            rope_frequencies(rope.dim, rope.base, rope.scaling, length) for rope in (one, two)
        )
        if not np.allclose(mine, theirs, rtol=1e-5, atol=0) or not math.isclose(
            loud, other, rel_tol=1e-5
        ):
            return False
    return True


__all__ = ["differences", "metadata_of", "rope_tensors"]
