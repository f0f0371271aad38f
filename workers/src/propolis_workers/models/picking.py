"""Which files of a repository make up the model that a name means."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.models.names import SPLIT
from propolis_workers.models.names import chosen
from propolis_workers.weights._file import PICKLE_SUFFIXES


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis_workers.models.names import ModelName

CONFIG: Final = "config.json"

# Beside the weights; in this order, so that the one that says "whole" comes last.
_BESIDE: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    CONFIG,
)
_INDEX: Final = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def is_pulled(file: str) -> bool:
    """Whether a folder's file, by its name, is one that a pull of safetensors writes."""
    weights = file in ("model.safetensors", _INDEX) or _SHARD.fullmatch(file) is not None
    return weights or file in _BESIDE


# GGUF files that are no language models: projectors of images, and statistics for quantising.
_OTHERS: Final = ("mmproj", "imatrix")


def pick(name: ModelName, files: Iterable[str]) -> list[str]:
    """
    The files to pull.

    Args:
        name: what was asked for.
        files: names of all files of the repository.

    Returns:
        Their names; a folder's ``config.json`` is the last.

    Raises:
        ModelError: there is no such model in the repository; says what there is.
    """
    files = sorted(files)
    ggufs = [file for file in files if file.endswith(".gguf") and not is_other(file)]
    weights = _weights(files)
    if name.which is None and weights:
        return [*weights, *(file for file in _BESIDE if file in files)]
    if name.which is not None and name.which.endswith(".gguf") and name.which in files:
        return _parts(name.which, files)
    if ggufs:
        heads = [file for file in ggufs if _is_first(file)]
        return _parts(chosen(name, heads, str, "there"), files)
    if weights:
        msg = f"{name} was asked for, and {name.repository} has no GGUF files: `propolis models "
        msg += f"pull {name.repository}` gets its safetensors"
        raise ModelError(msg)
    if any(PurePosixPath(file).suffix in PICKLE_SUFFIXES for file in files):
        msg = f"{name.repository} has its weights as pickles alone, which run code when they are "
        msg += "read; supported: GGUF, safetensors: look for a repository that has them"
        raise UnsupportedModelError(msg)
    msg = f"{name.repository} has neither GGUF files nor a {CONFIG} with model.safetensors: "
    msg += "look for a repository that has them"
    raise ModelError(msg)


def _weights(files: list[str]) -> list[str]:
    """The safetensors of a language model, which others may lie beside."""
    if CONFIG not in files:
        return []
    if "model.safetensors" in files:
        return ["model.safetensors"]
    shards = [file for file in files if _SHARD.fullmatch(file)]
    return [*shards, _INDEX] if shards and _INDEX in files else []


def is_other(file: str) -> bool:
    """Whether a GGUF file, by its path, is no language model but lies beside one."""
    return any(word in file.lower() for word in _OTHERS)


def _is_first(file: str) -> bool:
    split = SPLIT.search(file)
    return split is None or split[1] == "00001"


def _parts(file: str, files: list[str]) -> list[str]:
    """All parts of a split model, else the one file."""
    split = SPLIT.search(file)
    if split is None:
        return [file]
    head = file[: split.start()]
    found = [f"{head}-{part:05}-of-{split[2]}.gguf" for part in range(1, int(split[2]) + 1)]
    missing = [one for one in found if one not in files]
    if missing:
        msg = f"{file} is one part of {split[2]}, and {missing[0]} is not there: take another file"
        raise ModelError(msg)
    return found


__all__ = ["CONFIG", "is_other", "is_pulled", "pick"]
