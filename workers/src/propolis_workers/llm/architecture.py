"""What a file of ``llm/models`` says of an architecture: how its files name and number things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.network.decoder import Decoder


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings
    from propolis_workers.llm.rearranged import Piece


@dataclass(frozen=True, slots=True)
class Architecture:
    """
    How models of one architecture are read and computed.

    Attributes:
        gguf: what ``general.architecture`` is in their GGUF files.
        folder: what ``model_type`` is in their ``config.json``.
        names: our names of the weights -> (in GGUF files, in Hugging Face checkpoints), without
            ``.weight`` and ``.bias``; ``{}`` is the layer's number, a second one an expert's.
            An empty name: such files do not have it.
        from_gguf: the numbers, from a GGUF file.
        from_folder: the numbers, from a ``config.json``.
        network: what computes them.
        special: whether a GGUF file, whose architecture others share, is of this one.
        pieces: of tensors that checkpoints hold in another arrangement than the network takes them,
            by their names.
        filed: of tensors that GGUF files hold in another arrangement than checkpoints, by their
            names there; given our names of the weights -> the checkpoint's.
        exceeds_f16: whether activations of usual models are beyond what f16 has: those that vLLM
            lists as unstable in it (Gemma 2 and 3, GLM-4), and Gemma, their kin.
    """

    gguf: tuple[str, ...]
    folder: tuple[str, ...]
    names: Mapping[str, tuple[str, str]]
    from_gguf: Callable[[GGUFSettings], ModelConfig]
    from_folder: Callable[[FolderSettings], ModelConfig]
    network: Callable[..., Decoder] = Decoder
    special: Callable[[GGUFSettings], bool] | None = None
    pieces: Callable[[ModelConfig], Mapping[str, Piece]] | None = None
    filed: Callable[[ModelConfig, Mapping[str, str]], Mapping[str, Piece]] | None = None
    exceeds_f16: bool = False


_GGUF: Final = "blk.{}."
_FOLDER: Final = "model.layers.{}."


def layer_names(**names: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """
    Names of a layer's weights.

    Args:
        names: our name, with ``__`` for a dot -> (in a block of a GGUF file, in a layer of a
            checkpoint).
    """
    return {
        f"layers.{{}}.{ours.replace('__', '.')}": (
            gguf and _GGUF + gguf,
            folder and _FOLDER + folder,
        )
        for ours, (gguf, folder) in names.items()
    }


USUAL: Final[Mapping[str, tuple[str, str]]] = {
    "embedding": ("token_embd", "model.embed_tokens"),
    "norm": ("output_norm", "model.norm"),
    "output": ("output", "lm_head"),
    **layer_names(
        q=("attn_q", "self_attn.q_proj"),
        k=("attn_k", "self_attn.k_proj"),
        v=("attn_v", "self_attn.v_proj"),
        o=("attn_output", "self_attn.o_proj"),
    ),
}
"""What nearly all have."""

NORMS: Final = layer_names(
    attention_norm=("attn_norm", "input_layernorm"),
    ffn_norm=("ffn_norm", "post_attention_layernorm"),
)
"""Norms before attention and before the feed-forward network."""

GATED: Final = layer_names(
    gate=("ffn_gate", "mlp.gate_proj"),
    up=("ffn_up", "mlp.up_proj"),
    down=("ffn_down", "mlp.down_proj"),
)
"""A gated feed-forward network."""

HEAD_NORMS: Final = layer_names(
    q_norm=("attn_q_norm", "self_attn.q_norm"),
    k_norm=("attn_k_norm", "self_attn.k_norm"),
)
"""Norms of queries and keys."""

EXPERTS: Final = layer_names(
    router=("ffn_gate_inp", "mlp.gate"),
    experts__gate=("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    experts__up=("ffn_up_exps", "mlp.experts.{}.up_proj"),
    experts__down=("ffn_down_exps", "mlp.experts.{}.down_proj"),
)
"""A mixture of gated networks."""

__all__ = [
    "EXPERTS",
    "GATED",
    "HEAD_NORMS",
    "NORMS",
    "USUAL",
    "Architecture",
    "layer_names",
]
