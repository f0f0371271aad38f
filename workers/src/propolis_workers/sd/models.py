"""Which Stable Diffusion model to run when the user names none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import ModelError
from propolis.files import expanded
from propolis_workers.sd.loading import INDEX


if TYPE_CHECKING:
    from propolis.config import Config

# The package that carries a small model; it is only looked up, never imported.
PACKAGED: Final = "propolis_tiny_sd"


def find_model(config: Config) -> Path:
    """
    The folder of the model to run: the configured one, else the packaged one.

    Raises:
        ModelError: there is none; says how to get one.
    """
    return expanded(config.sd_model) if config.sd_model else packaged_model()


def packaged_model() -> Path:
    """
    The folder of the model that a distribution carries.

    Raises:
        ModelError: it is not installed; says how to get one.
    """
    spec = importlib.util.find_spec(PACKAGED)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for folder in (Path(place), *sorted(Path(place).glob("*/"))):
            if (folder / INDEX).is_file():
                return folder
    distribution = PACKAGED.replace("_", "-")
    msg = (
        f"no model: pass -m FOLDER (in the layout of diffusers, with {INDEX}), set "
        f"PROPOLIS_SD_MODEL, or install the small one with `pip install {distribution}`"
    )
    raise ModelError(msg)


def is_packaged(folder: Path) -> bool:
    """Whether a folder is that of the packaged model, which has no path worth naming."""
    return PACKAGED in folder.parts


__all__ = ["find_model", "is_packaged", "packaged_model"]
