"""Stable Diffusion: text to image with UNet models in the layout of diffusers."""

from __future__ import annotations


__all__: list[str] = []
