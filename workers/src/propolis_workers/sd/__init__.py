"""Stable Diffusion: text to image with UNet models in the layout of diffusers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from propolis_workers.sd.lora import LoRA
    from propolis_workers.sd.params import GenerateParams
    from propolis_workers.sd.pipeline import StableDiffusion
    from propolis_workers.sd.result import Images

_LAZY = {
    "GenerateParams": "propolis_workers.sd.params",
    "Images": "propolis_workers.sd.result",
    "LoRA": "propolis_workers.sd.lora",
    "StableDiffusion": "propolis_workers.sd.pipeline",
}


def __getattr__(name: str) -> Any:
    # The command line imports this package to list its commands: nothing heavy here.
    if name not in _LAZY:
        msg = f"module 'propolis_workers.sd' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_LAZY[name]), name)


__all__ = ["GenerateParams", "Images", "LoRA", "StableDiffusion"]
