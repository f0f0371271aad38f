"""Whether a file says that its model is made for embeddings, and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_workers.files import read_json
from propolis_workers.weights import GGUFFile


if TYPE_CHECKING:
    from propolis_workers.weights import SafetensorsFolder

# llama.cpp's numbers; a first token's state, or a rank, is of networks that read both ways.
_GGUF: Final[dict[Any, str]] = {1: "mean", 3: "last"}
# Of sentence-transformers, the file of the step after the network.
_FILE: Final = ("1_Pooling", "config.json")
_FOLDER: Final = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}


def pooling(source: GGUFFile | SafetensorsFolder) -> str:
    """
    How states become one vector: ``mean`` or ``last``; empty where the model writes text.

    Raises:
        FileFormatError: the file that should say it is damaged.
    """
    if isinstance(source, GGUFFile):
        architecture = source.metadata.get("general.architecture")
        return _GGUF.get(source.metadata.get(f"{architecture}.pooling_type", 0), "")
    file = (source.path if source.path.is_dir() else source.path.parent).joinpath(*_FILE)
    if not file.is_file():
        return ""
    said = read_json(file)
    return next((how for key, how in _FOLDER.items() if said.get(key) is True), "")


__all__ = ["pooling"]
