"""
The architectures that the worker runs: one file each, which nothing else names.

A file of this folder has an ``ARCHITECTURE``; its own name is the architecture's.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.layers import Layers
from propolis_workers.llm.reading import FolderSettings
from propolis_workers.llm.reading import GGUFSettings
from propolis_workers.llm.reading import about
from propolis_workers.llm.rearranged import Rearranged
from propolis_workers.llm.sought import LayersSought
from propolis_workers.weights import GGUFFile


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis import Device
    from propolis_workers.llm.architecture import Architecture
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.network.decoder import Decoder
    from propolis_workers.weights import SafetensorsFolder
    from propolis_workers.weights import Weights

_GGUF: Final = 0
_FOLDER: Final = 1
_BODY: Final = "model."


@cache
def architectures() -> Mapping[str, Architecture]:
    """All there are, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").ARCHITECTURE for name in names}


def read_config(source: GGUFFile | SafetensorsFolder) -> ModelConfig:
    """
    A model's numbers, from GGUF metadata or a ``config.json``.

    Raises:
        UnsupportedModelError: no worker here runs the architecture, or something it asks for.
        ModelError: a number is missing or makes no sense.
    """
    settings = GGUFSettings(source) if isinstance(source, GGUFFile) else FolderSettings(source)
    try:
        with about(settings.source):
            if isinstance(settings, GGUFSettings):
                return _of_gguf(settings).from_gguf(settings)
            return _of_folder(settings).from_folder(settings)
    except (ArithmeticError, ValueError) as exc:
        msg = f"{settings.source}: numbers that no model has ({exc})"
        raise ModelError(msg) from exc


def names_in(source: GGUFFile | SafetensorsFolder, config: ModelConfig) -> dict[str, str]:
    """Our names of a model's weights -> the file's, without ``.weight`` and ``.bias``."""
    column = _GGUF if isinstance(source, GGUFFile) else _FOLDER
    names = architectures()[config.architecture].names
    found = {ours: theirs[column] for ours, theirs in names.items() if theirs[column]}
    # Of a model of texts and images, transformers 4 and 5 name the language model's weights apart.
    for body, head in (("language_model.model.", "language_model."), ("model.language_model.", "")):
        inner = found["embedding"].removeprefix(_BODY)
        if inner != found["embedding"] and f"{body}{inner}.weight" in source.tensors:
            return {
                ours: body + theirs.removeprefix(_BODY)
                if theirs.startswith(_BODY)
                else head + theirs
                for ours, theirs in found.items()
            }
    return found


def build(
    source: GGUFFile | SafetensorsFolder,
    config: ModelConfig,
    device: Device,
    progress: Callable[[int], None] | None = None,
) -> Decoder:
    """
    The network, with its weights on a device.

    Args:
        source: the file.
        config: what :func:`read_config` read from it.
        device: where the weights go.
        progress: called with the bytes of each tensor once it is there.

    Raises:
        ModelError: a weight is missing or of another shape.
    """
    network = architectures()[config.architecture].network
    names = names_in(source, config)
    held = weights_of(source, config)
    return network(config, Layers(held, names, device, progress, dtype=config.dtype))


def expect_weights(source: GGUFFile | SafetensorsFolder, config: ModelConfig) -> None:
    """
    Check that a model's weights are there, before any is read.

    Raises:
        ModelError: one is missing or of another shape.
    """
    network = architectures()[config.architecture].network
    held = weights_of(source, config)
    network(config, LayersSought(held, names_in(source, config), config.dtype))


def weights_of(source: GGUFFile | SafetensorsFolder, config: ModelConfig) -> Weights:
    """The weights of a model as its architecture has them, under the names of :func:`names_in`."""
    held: Weights = source
    if not isinstance(source, GGUFFile):
        pieces = architectures()[config.architecture].pieces
        if (quantised := FolderSettings(source).quantised()) is not None:
            held = quantised(held)
        if pieces is not None:
            held = Rearranged(held, pieces(config))
    return held


def _of_gguf(metadata: GGUFSettings) -> Architecture:
    name = metadata.architecture
    named = [one for one in architectures().values() if name in one.gguf]
    named.sort(key=lambda one: one.special is None)  # those that ask for more first
    for one in named:
        if one.special is None or one.special(metadata):
            return one
    raise _unknown(metadata.source, name, _GGUF)


def _of_folder(settings: FolderSettings) -> Architecture:
    name = settings.text("model_type")
    for one in architectures().values():
        if name in one.folder:
            return one
    raise _unknown(settings.source, name, _FOLDER)


def _unknown(source: str, name: str, column: int) -> UnsupportedModelError:
    known = {
        said
        for one in architectures().values()
        for said in (one.gguf if column == _GGUF else one.folder)
    }
    supported = ", ".join(sorted(known))
    msg = f"{source}: architecture {name!r} is not supported; supported: {supported}"
    return UnsupportedModelError(msg)


__all__ = [
    "architectures",
    "build",
    "expect_weights",
    "names_in",
    "read_config",
    "weights_of",
]
