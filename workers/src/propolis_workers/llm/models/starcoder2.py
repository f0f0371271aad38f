"""StarCoder 2 (Lozhkov et al. 2024): layer norms, biases, a plain network, a window of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.architecture import layer_names
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers."""
    usual = read.usual(layer_norm=True)
    return ModelConfig(
        "starcoder2",
        **usual,
        norm="layer",
        activation="gelu_tanh",
        gated=False,
        windows=read.windows(),
    )


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers."""
    read.complete(num_key_value_heads=2, norm_epsilon=1e-5)
    usual = read.usual(epsilon="norm_epsilon", activations=("gelu_pytorch_tanh",), tied=True)
    return ModelConfig(
        "starcoder2",
        **usual,
        norm="layer",
        activation="gelu_tanh",
        gated=False,
        windows=read.windows(),
    )


ARCHITECTURE: Final = Architecture(
    gguf=("starcoder2",),
    folder=("starcoder2",),
    names={
        **USUAL,
        **NORMS,
        **layer_names(up=("ffn_up", "mlp.c_fc"), down=("ffn_down", "mlp.c_proj")),
    },
    from_gguf=from_gguf,
    from_folder=from_folder,
)
