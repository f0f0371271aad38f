"""SmolLM 3 (2025): Llama that turns no queries and keys in every fourth layer."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.architecture import GATED
from propolis_workers.llm.architecture import NORMS
from propolis_workers.llm.architecture import USUAL
from propolis_workers.llm.architecture import Architecture
from propolis_workers.llm.config import ModelConfig


if TYPE_CHECKING:
    from propolis_workers.llm.reading import FolderSettings
    from propolis_workers.llm.reading import GGUFSettings

_PERIOD: Final = 4


def _kinds(layers: int, period: int = _PERIOD) -> tuple[int, ...]:
    return tuple(-1 if layer % period == period - 1 else 0 for layer in range(layers))


def from_gguf(read: GGUFSettings) -> ModelConfig:
    """The numbers; q and k are reordered as llama's."""
    usual = read.usual(interleaved=True)
    return ModelConfig("smollm3", **usual, rope_of=_kinds(usual["layers"]))


def from_folder(read: FolderSettings) -> ModelConfig:
    """The numbers; ``no_rope_layers`` is 1 where queries and keys are turned."""
    read.complete(num_key_value_heads=4, rms_norm_eps=1e-6, rope_theta=2_000_000.0)
    usual = read.usual(tied=True)
    turned = read.values.get("no_rope_layers")
    kinds = _kinds(usual["layers"], max(1, read.count("no_rope_layer_interval", _PERIOD)))
    if turned is not None:
        if not isinstance(turned, list) or len(turned) != usual["layers"]:
            raise read.wrong("no_rope_layers", f"not a list of {usual['layers']} numbers")
        kinds = tuple(0 if one else -1 for one in turned)
    windows = read.windows() if read.values.get("use_sliding_window") else ()
    return ModelConfig("smollm3", **usual, rope_of=kinds, windows=windows)


ARCHITECTURE: Final = Architecture(
    gguf=("smollm3",),
    folder=("smollm3",),
    names={**USUAL, **NORMS, **GATED},
    from_gguf=from_gguf,
    from_folder=from_folder,
)
