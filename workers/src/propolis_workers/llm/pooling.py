"""Whether a file says that its model is made for embeddings, and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.files import read_json
from propolis_workers.llm.reading import GGUFSettings


if TYPE_CHECKING:
    from pathlib import Path

    from propolis_workers.llm.reading import ModelSettings

# llama.cpp's numbers; a first token's state, or a rank, is of networks that read both ways.
_GGUF: Final = {1: "mean", 3: "last"}
# Of sentence-transformers, the file of the step after the network.
_FILE: Final = ("1_Pooling", "config.json")
_FOLDER: Final = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}


def pooling(settings: ModelSettings, path: Path) -> str:
    """
    How states become one vector: ``mean`` or ``last``; empty where the model writes text.

    Args:
        settings: of the model.
        path: its file or folder.

    Raises:
        FileFormatError: the file that should say it is damaged.
    """
    if isinstance(settings, GGUFSettings):
        return _GGUF.get(settings.own_count("pooling_type", 0), "")
    file = (path if path.is_dir() else path.parent).joinpath(*_FILE)
    if not file.is_file():
        return ""
    said = read_json(file)
    return next((how for key, how in _FOLDER.items() if said.get(key) is True), "")


__all__ = ["pooling"]
