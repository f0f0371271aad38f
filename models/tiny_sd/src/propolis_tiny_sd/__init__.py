"""A very small Stable Diffusion model in the layout of diffusers: files, and where they lie."""

from pathlib import Path
from typing import Final


FOLDER: Final = Path(__file__).parent / "model"
"""Holds ``model_index.json`` and a folder for each part."""

__all__ = ["FOLDER"]
