"""The UNet of Stable Diffusion: predicts the noise in latents, given a step and a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from propolis import ops
from propolis.errors import ModelError
from propolis_workers.sd.resnet import Downsample
from propolis_workers.sd.resnet import ResnetBlock
from propolis_workers.sd.resnet import Upsample
from propolis_workers.sd.time_embedding import Sinusoids
from propolis_workers.sd.time_embedding import TimeEmbedding
from propolis_workers.sd.transformer import Transformer2D


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.sd.config import UNetConfig
    from propolis_workers.sd.layers import Weights


@dataclass(frozen=True, slots=True)
class AddedConditions:
    """
    What some UNets are told besides the text.

    Attributes:
        text_embeds: (b, d), the pooled text embedding (SDXL).
        time_ids: (b, 6), f32: original height and width, top and left of the crop, and
            target height and width, in pixels (SDXL).
        guidance: (b, time_cond_proj_dim), the embedded guidance scale (LCM).
    """

    text_embeds: Tensor | None = None
    time_ids: Tensor | None = None
    guidance: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Layer:
    """A residual block and the transformer after it, if any."""

    resnet: ResnetBlock
    transformer: Transformer2D | None

    def __call__(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        x = self.resnet(x, time)
        return x if self.transformer is None else self.transformer(x, context)


class UNet2DCondition:
    """
    A UNet (Rombach et al. 2022), built from its settings.

    Attributes:
        config: its settings.
    """

    def __init__(self, config: UNetConfig, weights: Weights) -> None:
        """
        Read the weights.

        Raises:
            ModelError: a tensor is missing or has another shape.
        """
        self.config = config
        self._weights_dtype = weights.dtype
        channels = config.block_out_channels
        first, time_width = channels[0], 4 * channels[0]
        kernel = config.conv_in_kernel
        self.conv_in = weights.conv2d(
            "conv_in", config.in_channels, first, kernel, padding=(kernel - 1) // 2
        )
        self.sinusoids = Sinusoids(
            first, weights, flip=config.flip_sin_to_cos, shift=config.freq_shift
        )
        self.time_embedding = TimeEmbedding(
            weights.sub("time_embedding"), first, time_width, config.time_cond_proj_dim
        )
        self.added = None
        if config.addition_embed_dim:
            self.added = TimeEmbedding(
                weights.sub("add_embedding"), config.addition_embed_dim, time_width
            )
            self.added_sinusoids = Sinusoids(
                config.addition_time_embed_dim,
                weights,
                flip=config.flip_sin_to_cos,
                shift=config.freq_shift,
            )
        build = _Builder(config, time_width)
        # (layers, change of resolution) of each level.
        self.down = [build.down(weights.sub(f"down_blocks.{n}"), n) for n in range(len(channels))]
        self.middle = build.middle(weights.sub("mid_block"))
        self.up = [build.up(weights.sub(f"up_blocks.{n}"), n) for n in range(len(channels))]
        self.norm_out = weights.group_norm(
            "conv_norm_out", first, config.norm_num_groups, config.norm_eps
        )
        kernel = config.conv_out_kernel
        self.conv_out = weights.conv2d(
            "conv_out", first, config.out_channels, kernel, padding=(kernel - 1) // 2
        )

    def __call__(
        self,
        sample: Tensor,
        timestep: Tensor,
        context: Tensor,
        added: AddedConditions | None = None,
    ) -> Tensor:
        """
        Predict.

        Args:
            sample: (b, in_channels, h, w), scaled as the scheduler says.
            timestep: (b,), or (1,) for all, f32.
            context: (b, t, cross_attention_dim), the text.
            added: further conditions, where the model takes them.  Without embedded
                guidance a model that takes it adds nothing for it.

        Returns:
            (b, out_channels, h, w): noise, velocity or latents, as the scheduler says.

        Raises:
            ModelError: an argument does not fit the model.
        """
        added = added or AddedConditions()
        self._check(sample, context, added)
        dtype = self._weights_dtype
        time = self._time(timestep, added)
        context = ops.cast(context, dtype) if context.dtype is not dtype else context
        x = self.conv_in(ops.cast(sample, dtype) if sample.dtype is not dtype else sample)
        skips = [x]
        for layers, downsample in self.down:
            for layer in layers:
                x = layer(x, time, context)
                skips.append(x)
            if downsample is not None:
                x = downsample(x)
                skips.append(x)
        for layer in self.middle:
            x = layer(x, time, context)
        for layers, upsample in self.up:
            for layer in layers:
                x = ops.cat([x, skips.pop()], 1)
                x = layer(x, time, context)
            if upsample is not None:
                # What was halved from an odd size doubles to another one.
                height, width = skips[-1].shape[2:]
                x = upsample(x, (height, width))
        x = self.norm_out.silu(x)
        return self.conv_out(x)

    def _time(self, timestep: Tensor, added: AddedConditions) -> Tensor:
        """The activated embedding of the step and of what comes with it."""
        y = self.time_embedding(self.sinusoids(timestep), added.guidance)
        text, sizes = added.text_embeds, added.time_ids
        if self.added is not None and text is not None and sizes is not None:
            batch, count = sizes.shape
            embedded = self.added_sinusoids(sizes.reshape(batch * count)).reshape(batch, -1)
            if text.dtype is not embedded.dtype:
                text = ops.cast(text, embedded.dtype)
            y = ops.add(y, self.added(ops.cat([text, embedded], 1)))
        return ops.silu(y)

    def _check(self, sample: Tensor, context: Tensor, added: AddedConditions) -> None:
        config = self.config
        if len(sample.shape) != 4 or sample.shape[1] != config.in_channels:
            msg = f"the UNet takes (b, {config.in_channels}, h, w), got {sample.shape}"
            raise ModelError(msg)
        width = config.cross_attention_dim[0]
        if len(context.shape) != 3 or context.shape[2] != width:
            msg = f"the UNet takes text embeddings (b, t, {width}), got {context.shape}"
            raise ModelError(msg)
        text, sizes, guidance = added.text_embeds, added.time_ids, added.guidance
        given = 0
        if text is not None and sizes is not None:
            given = text.shape[1] + sizes.shape[1] * config.addition_time_embed_dim
        if given != config.addition_embed_dim:
            msg = (
                f"the UNet takes {config.addition_embed_dim} added conditions (SDXL: pooled text "
                f"embedding and sizes together), got {given}"
            )
            raise ModelError(msg)
        if guidance is not None and guidance.shape[1] != config.time_cond_proj_dim:
            takes = f"of {config.time_cond_proj_dim}" if config.time_cond_proj_dim else "none"
            msg = f"the UNet takes a guidance embedding (LCM): {takes}, got {guidance.shape[1]}"
            raise ModelError(msg)


class _Builder:
    """Makes the levels of a UNet."""

    def __init__(self, config: UNetConfig, time_width: int) -> None:
        self.config = config
        self.time_width = time_width

    def down(self, weights: Weights, level: int) -> tuple[list[_Layer], Downsample | None]:
        config, channels = self.config, self.config.block_out_channels
        sizes = [channels[max(level - 1, 0)]] + [channels[level]] * config.layers_per_block[level]
        depths = config.transformer_layers[level] if config.down_attention[level] else ()
        only = config.only_cross_attention[level]
        layers = self._layers(weights, level, sizes[:-1], depths, only_cross=only)
        last = level == len(channels) - 1
        return layers, None if last else Downsample(
            weights.sub("downsamplers.0"), channels[level], config.downsample_padding
        )

    def middle(self, weights: Weights) -> list[_Layer]:
        config, channels = self.config, self.config.block_out_channels[-1]
        if not config.mid_block_type:
            return []
        level = len(config.block_out_channels) - 1
        attends = config.mid_block_type == "UNetMidBlock2DCrossAttn"
        depths = config.transformer_layers[-1][:1] if attends else ()
        # Before its transformer stands one residual block, after it another.
        sizes = [channels] * (len(depths) + 1)
        return self._layers(weights, level, sizes, depths, only_cross=False)

    def up(self, weights: Weights, number: int) -> tuple[list[_Layer], Upsample | None]:
        config, channels = self.config, self.config.block_out_channels
        level = len(channels) - 1 - number
        count = config.layers_per_block[level] + 1
        # Each takes what came from below, or from the layer before, and a skip.
        below = [channels[min(level + 1, len(channels) - 1)]] + [channels[level]] * (count - 1)
        skips = [channels[level]] * (count - 1) + [channels[max(level - 1, 0)]]
        sizes = [b + s for b, s in zip(below, skips, strict=True)]
        depths = config.up_transformer_layers[number] if config.up_attention[number] else ()
        only = config.only_cross_attention[level]
        layers = self._layers(weights, level, sizes, depths, only_cross=only)
        last = number == len(channels) - 1
        return layers, None if last else Upsample(weights.sub("upsamplers.0"), channels[level])

    def _layers(
        self,
        weights: Weights,
        level: int,
        sizes: list[int],
        depths: tuple[int, ...],
        *,
        only_cross: bool,
    ) -> list[_Layer]:
        """Layers that take so many channels each; the first ones with transformers so deep."""
        config = self.config
        channels = config.block_out_channels[level]
        layers = []
        for n, size in enumerate(sizes):
            resnet = ResnetBlock(
                weights.sub(f"resnets.{n}"),
                size,
                channels,
                groups=config.norm_num_groups,
                eps=config.norm_eps,
                time_width=self.time_width,
            )
            transformer = None
            if n < len(depths):
                transformer = Transformer2D(
                    weights.sub(f"attentions.{n}"),
                    channels,
                    config.heads[level],
                    depth=depths[n],
                    context=config.cross_attention_dim[level],
                    groups=config.norm_num_groups,
                    only_cross=only_cross,
                )
            layers.append(_Layer(resnet, transformer))
        return layers


__all__ = ["AddedConditions", "UNet2DCondition"]
