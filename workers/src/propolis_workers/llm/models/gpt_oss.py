"""gpt-oss (OpenAI 2025): experts with biases, sinks in attention, a window in every other layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis.errors import UnsupportedModelError
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import Experts
from propolis_workers.llm.config import ModelConfig
from propolis_workers.llm.config import alternating
from propolis_workers.llm.rearranged import Piece


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings

_ACTIVATION: Final = "clamped_swish"
_YARN: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_EXPERTS: Final = "model.layers.{}.mlp.experts."


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    usual = read.usual()
    (rope,) = usual.pop("ropes")
    # No key says it: these models were trained with YaRN's ramp between pairs, not from whole ones.
    words = {"truncate": False} if rope.scaling["rope_type"] == "yarn" else {}
    usual["ropes"] = (replace(rope, scaling={**rope.scaling, **words}),)
    experts = Experts(
        read.own_count("expert_count"),
        read.own_count("expert_used_count"),
        read.own_count("expert_feed_forward_length", usual["ffn_width"]),
    )
    window = read.own_count("attention.sliding_window", 128)
    windows = tuple(alternating(usual["layers"], 2, window))
    return ModelConfig("gpt_oss", **usual, windows=windows, activation=_ACTIVATION, experts=experts)


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    for key, only in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if read.number(key, only) != only:
            msg = f"config.json: {key} is {read.number(key)}; supported: {only}"
            raise UnsupportedModelError(msg)
    read.complete(
        num_key_value_heads=8, sliding_window=128, rms_norm_eps=1e-5, rope_theta=150_000.0
    )
    if "rope_scaling" not in read.values:
        read.complete(rope_parameters=_YARN)
    usual = read.usual(head_dim=64)
    experts = Experts(
        read.count("num_local_experts", 128),
        read.count("num_experts_per_tok", 4),
        usual["ffn_width"],
    )
    windows = tuple(alternating(usual["layers"], 2, read.count("sliding_window", 128)))
    if read.values.get("layer_types"):
        windows = read.windows()
    return ModelConfig("gpt_oss", **usual, windows=windows, activation=_ACTIVATION, experts=experts)


def pieces(config: ModelConfig) -> dict[str, Piece]:
    """
    A checkpoint holds gates and the rest in turns, and experts' matrices transposed.

    Save where these are in MXFP4, whose blocks lie along the rows: then they come as bytes.
    """
    experts = config.experts
    assert experts is not None  # noqa: S101  each model of this architecture has a mixture
    count, inner, width = experts.count, experts.width, config.width

    def rows(array: np.ndarray) -> np.ndarray:
        return array if array.dtype == np.uint8 else array.swapaxes(1, 2)

    def every_other(first: int, *, matrix: bool) -> Piece:
        def take(whole: np.ndarray) -> np.ndarray:
            return (rows(whole) if matrix else whole)[:, first::2]

        shape = (count, inner, width) if matrix else (count, inner)
        return Piece(f"gate_up_proj{'' if matrix else '_bias'}", shape, take)

    def whole(array: np.ndarray) -> np.ndarray:
        return array

    each = {
        "gate.weight": every_other(0, matrix=True),
        "gate.bias": every_other(0, matrix=False),
        "up.weight": every_other(1, matrix=True),
        "up.bias": every_other(1, matrix=False),
        "down.weight": Piece("down_proj", (count, width, inner), rows),
        "down.bias": Piece("down_proj_bias", (count, width), whole),
    }
    return {
        _EXPERTS.format(layer) + name: Piece(
            _EXPERTS.format(layer) + piece.of, piece.shape, piece.take
        )
        for layer in range(config.layers)
        for name, piece in each.items()
    }


ARCHITECTURE: Final = Architecture(
    gguf=("gpt-oss",),
    folder=("gpt_oss",),
    names={
        **USUAL,
        **NORMS,
        **layer_names(
            ffn_norm=("post_attention_norm", "post_attention_layernorm"),
            sinks=("attn_sinks.weight", "self_attn.sinks"),
            router=("ffn_gate_inp", "mlp.router"),
            experts__gate=("ffn_gate_exps", "mlp.experts.gate"),
            experts__up=("ffn_up_exps", "mlp.experts.up"),
            experts__down=("ffn_down_exps", "mlp.experts.down"),
        ),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
    pieces=pieces,
)
