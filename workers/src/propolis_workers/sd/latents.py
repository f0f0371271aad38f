"""Between pixels on the host and what the models take on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import ModelError
from propolis_workers.suspects import suspects_without_drift


if TYPE_CHECKING:
    from propolis import Device
    from propolis_workers.sd.images import Pixels
    from propolis_workers.sd.vae import AutoencoderKL
    from propolis_workers.sd.vae import Tiled


def to_tensor(pixels: Pixels, device: Device) -> Tensor:
    """u8 (h, w, 3) -> f32 (1, 3, h, w) in [-1, 1]."""
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))[np.newaxis]
    x = ops.cast(Tensor.from_numpy(planes, device), dtypes.f32)
    return ops.affine(x, 2 / 255, -1.0)


class NotFiniteError(ModelError):
    """Numbers of a model are not finite: the weights, or an op before them, are wrong."""


def to_pixels(x: Tensor) -> Pixels:
    """
    (1, 3, h, w), about in [-1, 1] -> u8 (h, w, 3).

    Raises:
        NotFiniteError: it has values that are not finite.
    """
    x = as_f32(x)
    rounded = ops.round(ops.affine(ops.clamp(x, -1.0, 1.0), 127.5, 127.5))
    # Clamping hides infinities, and the cast NaN.
    if not (is_finite(x) and is_finite(rounded)):
        msg = "the VAE decoded to values that are not finite, no image: its weights are damaged, "
        msg += "or overflow f16: run it in f32 (--dtype f32); or an op is wrong: "
        raise NotFiniteError(msg + suspects_without_drift(x.device))
    planes = ops.cast(rounded, dtypes.u8).numpy()[0]
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


def to_mask(pixels: Pixels, factor: int, batch: int, device: Device) -> Tensor:
    """u8 (h, w), 0 or 255 -> u8 (batch, 1, h / factor, w / factor), 1 where it is drawn anew."""
    small = (pixels[::factor, ::factor] >= 128).astype(np.uint8)
    return Tensor.from_numpy(np.tile(small, (batch, 1, 1, 1)), device)


def encode(vae: AutoencoderKL, x: Tensor, noise: Tensor) -> Tensor:
    """
    An image as the UNet's latents, one draw for each image of ``noise``.

    Args:
        vae: the encoder.
        x: f32 (1, 3, h, w) in [-1, 1].
        noise: f32 (b, channels, h / factor, w / factor), standard normal.

    Returns:
        f32, the shape of ``noise``.
    """
    found = vae.encode(x)
    mean, logvar = (as_f32(t) for t in (found.mean, found.logvar))
    z = ops.add(ops.mul(noise, ops.exp(ops.affine(logvar, 0.5, 0.0))), mean)
    config = vae.config
    return ops.affine(z, config.scaling_factor, 0.0)


def encode_mean(vae: AutoencoderKL, x: Tensor) -> Tensor:
    """The likeliest latents of an image, f32; as :func:`encode` without its draw."""
    config = vae.config
    mean = as_f32(vae.encode(x).mean)
    return ops.affine(mean, config.scaling_factor, 0.0)


def decode(vae: AutoencoderKL, latents: Tensor, n: int, tiled: Tiled = "auto") -> Pixels:
    """
    Image ``n`` of a batch of the UNet's latents.

    Raises:
        NotFiniteError: the image has values that are not finite.
    """
    config = vae.config
    z = ops.affine(latents.narrow(0, n, 1), 1 / config.scaling_factor, 0.0)
    return to_pixels(vae.decode(z, tiled=tiled))


def as_f32(x: Tensor) -> Tensor:
    """The same in f32; itself where it is."""
    return x if x.dtype is dtypes.f32 else ops.cast(x, dtypes.f32)


def is_finite(x: Tensor) -> bool:
    """Whether no element is infinite or NaN; waits for the device."""
    # Infinities of both signs add up to NaN; finite ones of latents and images to no infinity.
    return bool(np.isfinite(ops.sum(x).numpy()))


__all__ = [
    "as_f32",
    "decode",
    "encode",
    "encode_mean",
    "is_finite",
    "to_mask",
    "to_pixels",
    "to_tensor",
]
