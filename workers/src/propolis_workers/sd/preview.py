"""
What is seen so far, at the cost of a product of small matrices: no decoding.

Each element of the latents is about a colour of the pixels beneath it, linearly.  How, each VAE
learnt for itself: it is fitted once, to what the VAE's encoder makes of a picture of many colours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_workers.sd.latents import encode_mean
from propolis_workers.sd.latents import to_tensor


if TYPE_CHECKING:
    from propolis import Device
    from propolis import Tensor
    from propolis_workers.sd.images import Pixels
    from propolis_workers.sd.vae import AutoencoderKL

# Elements of the latents along the side of the picture that is fitted to.
_SIDE: Final = 32
# Elements along the side of a patch of one colour.
_PATCH: Final = 4


class Preview:
    """Pictures of latents, one pixel for each of their elements."""

    def __init__(self, vae: AutoencoderKL, device: Device) -> None:
        """
        Fit to a VAE.

        Args:
            vae: whose latents are looked at.
            device: where it is.
        """
        scale = vae.config.scale
        colours = _picture()
        pixels = np.kron(colours, np.ones((scale, scale, 1), np.uint8))
        latents = encode_mean(vae, to_tensor(pixels, device)).numpy()[0]
        wanted = colours.reshape(-1, 3).astype(np.float64) / 255
        found, *_ = np.linalg.lstsq(_terms(latents), wanted, rcond=None)
        self._weights = found.astype(np.float32)

    def __call__(self, latents: Tensor, n: int) -> Pixels:
        """
        A picture of image ``n`` of (b, c, h, w).

        Returns:
            u8 (h, w, 3).
        """
        own = latents.narrow(0, n, 1).numpy()[0]
        pixels = np.nan_to_num(_terms(own) @ self._weights).clip(0, 1) * 255
        return np.asarray(pixels.round().astype(np.uint8).reshape(*own.shape[1:], 3))


def _terms(latents: np.ndarray) -> np.ndarray:
    """(c, h, w) -> (h * w, c + 1): the elements and a constant."""
    rows = latents.reshape(len(latents), -1).T
    return np.concatenate([rows, np.ones_like(rows[:, :1])], 1)


def _picture() -> Pixels:
    """u8 (side, side, 3): patches of all colours, in an order that is always the same."""
    patches = _SIDE // _PATCH
    colours = np.random.default_rng(0).integers(0, 256, (patches, patches, 3)).astype(np.uint8)
    return np.kron(colours, np.ones((_PATCH, _PATCH, 1), np.uint8))


__all__ = ["Preview"]
