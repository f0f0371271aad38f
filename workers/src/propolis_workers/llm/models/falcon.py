"""Falcon (Almazrouei et al. 2023): attention and a plain network side by side, few shared heads."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import UnsupportedModelError
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.network.block import Block
from propolis_workers.llm.network.decoder import Decoder
from propolis_workers.llm.rearranged import Piece


if TYPE_CHECKING:
    from propolis_workers.llm.layers import Layers
    from propolis_workers.llm.layers import Norm
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings

_NETWORK: Final[dict[str, Any]] = {
    "norm": "layer",
    "activation": "gelu_erf",
    "gated": False,
    "parallel": True,
}
_QKV: Final = "transformer.h.{}.self_attention.query_key_value"


class FalconBlock(Block):
    """Of 7B attention and network share a norm; of 40B and 180B each has its own."""

    def norm(self, weights: Layers, layer: int, name: str) -> Norm | None:
        """One of its norms."""
        if weights.has(f"layers.{layer}.own_attention_norm"):
            own = {"attention_norm": "own_attention_norm", "ffn_norm": "own_ffn_norm"}
            name = own.get(name, name)
        return super().norm(weights, layer, name)


class Falcon(Decoder):
    """The whole model."""

    block_type = FalconBlock


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    return ModelConfig("falcon", **read.usual(layer_norm=True), **_NETWORK)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers, some of them under names that no other model has."""
    for key, wanted in (("alibi", False), ("parallel_attn", True)):
        if read.flag(key, wanted) is not wanted:
            msg = f"config.json: {key} is {not wanted}; supported: {wanted}"
            raise UnsupportedModelError(msg)
    heads, width = read.count("num_attention_heads"), read.count("hidden_size")
    if read.flag("new_decoder_architecture", False):
        shared = read.count("num_kv_heads", heads)
    else:
        shared = 1 if read.flag("multi_query", True) else heads
    usual = read.usual(
        epsilon="layer_norm_epsilon",
        epsilon_default=1e-5,
        activation_key="activation",
        activations=("gelu",),
        tied=True,
        ffn_width=4 * width,
        context=2048,
    )
    usual |= {"kv_heads": shared, "ffn_width": read.count("ffn_hidden_size", 4 * width)}
    return ModelConfig("falcon", **usual, **_NETWORK)


def pieces(config: ModelConfig) -> dict[str, Piece]:
    """Of each group of heads a checkpoint has the queries, the key and the value together."""
    group, dim = config.heads // config.kv_heads, config.head_dim

    def take(whole: np.ndarray) -> np.ndarray:
        groups = whole.reshape(config.kv_heads, group + 2, dim, *whole.shape[1:])
        parts = groups[:, :group], groups[:, group], groups[:, group + 1]
        return np.concatenate([part.reshape(-1, *whole.shape[1:]) for part in parts])

    rows = (config.heads + 2 * config.kv_heads) * dim
    shapes = {".weight": (rows, config.width), ".bias": (rows,)}
    return {
        "arranged." + _QKV.format(layer) + suffix: Piece(_QKV.format(layer) + suffix, shape, take)
        for layer in range(config.layers)
        for suffix, shape in shapes.items()
    }


ARCHITECTURE: Final = Architecture(
    gguf=("falcon",),
    folder=("falcon",),
    names={
        "embedding": ("token_embd", "transformer.word_embeddings"),
        "norm": ("output_norm", "transformer.ln_f"),
        "output": ("output", "lm_head"),
        "layers.{}.qkv": ("blk.{}.attn_qkv", "arranged." + _QKV),
        **{
            f"layers.{{}}.{ours}": (f"blk.{{}}.{gguf}", f"transformer.h.{{}}.{folder}")
            for ours, gguf, folder in (
                ("attention_norm", "attn_norm", "input_layernorm"),
                ("own_attention_norm", "attn_norm_2", "ln_attn"),
                ("own_ffn_norm", "attn_norm", "ln_mlp"),
                ("o", "attn_output", "self_attention.dense"),
                ("up", "ffn_up", "mlp.dense_h_to_4h"),
                ("down", "ffn_down", "mlp.dense_4h_to_h"),
            )
        },
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
    network=Falcon,
    pieces=pieces,
)
