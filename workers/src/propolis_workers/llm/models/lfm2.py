"""LFM2 (Liquid AI 2025): short convolutions in most layers, attention in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import UnsupportedModelError
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.rearranged import Piece


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; a layer that has no key-value heads is a convolution."""
    counts = read.own_counts("attention.head_count_kv")
    usual = read.usual(kv_heads=max(counts, default=0))
    return ModelConfig(
        "lfm2",
        **usual,
        convolved=tuple(count == 0 for count in counts),
        conv_taps=read.own_count("shortconv.l_cache"),
    )


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers; the network's width may be two thirds of what is said, rounded up."""
    read.complete(num_key_value_heads=8, rope_theta=1_000_000.0)
    width = read.count("block_ff_dim", read.count("intermediate_size", 12288))
    if read.flag("block_auto_adjust_ff_dim", True):
        multiple = max(read.count("block_multiple_of", 256), 1)
        width = int(read.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    usual = read.usual(epsilon="norm_eps", epsilon_default=1e-5, tied=True, ffn_width=width)
    usual |= {"ffn_width": width, "tied": read.flag("tie_embedding", usual["tied"])}
    kinds = read.values.get("layer_types")
    attended = read.values.get("full_attn_idxs", [])
    if kinds is None and isinstance(attended, list):
        kinds = [
            "full_attention" if layer in attended else "conv" for layer in range(usual["layers"])
        ]
    if not isinstance(kinds, list) or len(kinds) != usual["layers"]:
        raise read.wrong("layer_types", f"not a list of {usual['layers']} texts")
    if not set(map(str, kinds)) <= {"conv", "full_attention"}:
        msg = "config.json: layer_types; supported: conv, full_attention"
        raise UnsupportedModelError(msg)
    return ModelConfig(
        "lfm2",
        **usual,
        convolved=tuple(kind == "conv" for kind in kinds),
        conv_taps=read.count("conv_L_cache", 3),
    )


def filed(config: ModelConfig, names: Mapping[str, str]) -> dict[str, Piece]:
    """A checkpoint holds taps as torch has them: (width, 1, taps)."""
    theirs = names["layers.{}.conv"]
    shape = config.width, config.conv_taps
    return {
        f"blk.{layer}.shortconv.conv.weight": Piece(
            theirs.format(layer) + ".weight", shape, lambda whole: whole.squeeze(1)
        )
        for layer, convolved in enumerate(config.convolved)
        if convolved
    }


ARCHITECTURE: Final = Architecture(
    gguf=("lfm2",),
    folder=("lfm2",),
    names={
        **USUAL,
        "norm": ("token_embd_norm", "model.embedding_norm"),
        **layer_names(
            attention_norm=("attn_norm", "operator_norm"),
            o=("attn_output", "self_attn.out_proj"),
            q_norm=("attn_q_norm", "self_attn.q_layernorm"),
            k_norm=("attn_k_norm", "self_attn.k_layernorm"),
            conv_in=("shortconv.in_proj", "conv.in_proj"),
            conv_out=("shortconv.out_proj", "conv.out_proj"),
            conv=("shortconv.conv", "conv.conv"),
            ffn_norm=("ffn_norm", "ffn_norm"),
            gate=("ffn_gate", "feed_forward.w1"),
            up=("ffn_up", "feed_forward.w3"),
            down=("ffn_down", "feed_forward.w2"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
    filed=filed,
)
