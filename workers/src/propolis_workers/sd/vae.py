"""The autoencoder between images and latents (Kingma, Welling 2014; Rombach et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final
from typing import Literal

from propolis import ops
from propolis.errors import ModelError
from propolis.errors import OutOfMemoryError
from propolis_workers.sd.attention import Attention
from propolis_workers.sd.resnet import Downsample
from propolis_workers.sd.resnet import ResnetBlock
from propolis_workers.sd.resnet import Upsample
from propolis_workers.sd.tiling import decode_in_less_memory
from propolis_workers.sd.tiling import decode_tiled


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor
    from propolis_workers.sd.config import VAEConfig
    from propolis_workers.sd.layers import Weights

Tiled = Literal["auto", "never", "always"]
"""Whether to decode in tiles: when memory is short, never, or whenever there is more than one."""

# What old files call the projections of an attention.
ALIASES: Final = (
    (".to_q.", ".query."),
    (".to_k.", ".key."),
    (".to_v.", ".value."),
    (".to_out.0.", ".proj_attn."),
)

_EPS: Final = 1e-6  # of all norms, in diffusers and in every published VAE
_LOGVAR: Final = (-30.0, 20.0)  # diffusers clamps to it; far from it in use


@dataclass(frozen=True, slots=True)
class Gaussian:
    """
    What an encoder thinks of the latents: (b, latent_channels, h, w) each.

    Attributes:
        mean: the most likely ones.
        logvar: the logarithm of their variance.
    """

    mean: Tensor
    logvar: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Latents: the mean, and standard normal ``noise`` of its shape to scale."""
        deviation = ops.exp(ops.affine(self.logvar, 0.5, 0.0))
        ops.mul.into(deviation, deviation, noise)
        return ops.add.into(deviation, deviation, self.mean)


class AutoencoderKL:
    """
    A VAE.

    Attributes:
        config: its settings.
        tile: latent pixels along the side of the tiles of the last decode; 0 where it was
            done at once.
        expect_room: raises OutOfMemoryError where latents cannot be decoded at once; None
            where nobody knows.
    """

    def __init__(self, config: VAEConfig, weights: Weights) -> None:
        """
        Read the weights.

        Raises:
            ModelError: a tensor is missing or has another shape.
        """
        self.config = config
        self.tile = 0
        self.expect_room: Callable[[Tensor], None] | None = None
        self._dtype = weights.dtype
        self.encoder = _encoder(config, weights)
        self.decoder = _decoder(config, weights)

    def encode(self, x: Tensor) -> Gaussian:
        """
        The latents of images.

        Args:
            x: (b, in_channels, h, w) in [-1, 1], sizes divisible by ``config.scale``.

        Raises:
            ModelError: the sizes are not so.
        """
        channels, scale = self.config.in_channels, self.config.scale
        sized = len(x.shape) == 4 and x.shape[1] == channels
        if not sized or x.shape[2] % scale or x.shape[3] % scale:
            msg = f"the VAE takes (b, {channels}, h, w) with sizes divisible by {scale}"
            msg = f"{msg}, got {x.shape}"
            raise ModelError(msg)
        y = _run(self.encoder, self._cast(x))
        half = self.config.latent_channels
        logvar = ops.clamp(y.narrow(1, half, half), *_LOGVAR)
        return Gaussian(y.narrow(1, 0, half).contiguous(), logvar)

    def decode(self, z: Tensor, *, tiled: Tiled = "auto") -> Tensor:
        """
        The images of latents.

        Args:
            z: (b, latent_channels, h, w), not scaled by the UNet's factor.
            tiled: whether to decode in tiles that overlap.  ``auto`` does so where the
                device has too little memory for all at once, and logs ``vae.tiled``.

        Returns:
            (b, out_channels, 8h, 8w) (with four levels), about in [-1, 1].

        Raises:
            ModelError: ``z`` has another shape.
            OutOfMemoryError: even tiles do not fit, or must not be used.
        """
        channels = self.config.latent_channels
        if len(z.shape) != 4 or z.shape[1] != channels:
            msg = f"the VAE takes latents (b, {channels}, h, w), got {z.shape}"
            raise ModelError(msg)
        z = self._cast(z)
        self.tile = 0
        if tiled == "always":
            self.tile = max(self.config.sample_size // self.config.scale, 1)
            return decode_tiled(self._decode, z, self.tile, self.config.scale)
        try:
            return self._decode(z)
        except (OutOfMemoryError, MemoryError) as error:
            if tiled == "never":
                raise
            reason = str(error)
        # Not in the except clause: the traceback keeps what the first try had made.
        largest = self.config.sample_size // self.config.scale
        y, self.tile = decode_in_less_memory(self._decode, z, largest, self.config.scale, reason)
        return y

    def _decode(self, z: Tensor) -> Tensor:
        if self.expect_room is not None:
            self.expect_room(z)
        return _run(self.decoder, z)

    def _cast(self, x: Tensor) -> Tensor:
        return x if x.dtype is self._dtype else ops.cast(x, self._dtype)


class _Attention:
    """Attention of all pixels to each other, with one head, added to them."""

    def __init__(self, weights: Weights, channels: int, groups: int) -> None:
        self.norm = weights.group_norm("group_norm", channels, groups, _EPS)
        self.attention = Attention(weights, channels, 1, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        pixels = (batch, channels, height * width)
        y = self.attention(self.norm(x).reshape(*pixels).transpose(1, 2)).transpose(1, 2)
        return ops.add(x.reshape(*pixels), y).reshape(*x.shape)


_Layers = list["Callable[[Tensor], Tensor]"]


def _run(layers: _Layers, x: Tensor) -> Tensor:
    """One layer after the other; in one frame, so that no input outlives its layer."""
    for layer in layers:
        x = layer(x)
    return x


def _encoder(config: VAEConfig, weights: Weights) -> _Layers:
    part, channels = weights.sub("encoder"), config.block_out_channels
    layers: _Layers = [part.conv2d("conv_in", config.in_channels, channels[0], 3, padding=1)]
    before = channels[0]
    for level, size in enumerate(channels):
        block = part.sub(f"down_blocks.{level}")
        layers += _resnets(config, block, [before] + [size] * (config.layers_per_block - 1), size)
        if level < len(channels) - 1:
            layers.append(Downsample(block.sub("downsamplers.0"), size, 0))
        before = size
    doubled = 2 * config.latent_channels
    layers += _middle_and_end(config, part, channels[-1], [], doubled)
    if config.use_quant_conv:
        layers.append(weights.conv2d("quant_conv", doubled, doubled, 1))
    return layers


def _decoder(config: VAEConfig, weights: Weights) -> _Layers:
    part, channels = weights.sub("decoder"), config.block_out_channels
    latents = config.latent_channels
    layers: _Layers = []
    if config.use_post_quant_conv:
        layers.append(weights.conv2d("post_quant_conv", latents, latents, 1))
    layers.append(part.conv2d("conv_in", latents, channels[-1], 3, padding=1))
    ups: _Layers = []
    before = channels[-1]
    for number, size in enumerate(reversed(channels)):
        block = part.sub(f"up_blocks.{number}")
        ups += _resnets(config, block, [before] + [size] * config.layers_per_block, size)
        if number < len(channels) - 1:
            ups.append(Upsample(block.sub("upsamplers.0"), size))
        before = size
    return layers + _middle_and_end(config, part, channels[-1], ups, config.out_channels)


def _middle_and_end(
    config: VAEConfig, part: Weights, width: int, between: _Layers, channels: int
) -> _Layers:
    """The middle, what comes between it and the end, and the norm and convolution there."""
    middle = part.sub("mid_block")
    first, second = _resnets(config, middle, [width, width], width)
    attention: _Layers = []
    if config.mid_block_add_attention:
        attention = [_Attention(middle.sub("attentions.0"), width, config.norm_num_groups)]
    last = width if not between else config.block_out_channels[0]
    norm = part.group_norm("conv_norm_out", last, config.norm_num_groups, _EPS)
    end = part.conv2d("conv_out", last, channels, 3, padding=1)
    return [first, *attention, second, *between, norm.silu, end]


def _resnets(config: VAEConfig, weights: Weights, sizes: list[int], size: int) -> _Layers:
    """Residual blocks that take so many channels each and give ``size``."""
    groups = config.norm_num_groups
    return [
        ResnetBlock(weights.sub(f"resnets.{n}"), before, size, groups=groups, eps=_EPS)
        for n, before in enumerate(sizes)
    ]


__all__ = ["ALIASES", "AutoencoderKL", "Gaussian", "Tiled"]
