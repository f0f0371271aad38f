"""
The settings of Stable Diffusion's models, as ``config.json`` files of diffusers have them.

Names and defaults are those of diffusers' ``UNet2DConditionModel`` and ``AutoencoderKL``
and of transformers' ``CLIPTextConfig``; what the models here do not do is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_workers.sd._settings import FileSettings


if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class CLIPTextConfig:
    """
    A CLIP text encoder.

    Attributes:
        vocab_size: rows of the token embedding.
        hidden_size: elements of the residual stream.
        intermediate_size: elements inside the feed-forward network.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads of a block.
        max_position_embeddings: tokens of the longest text.
        projection_dim: elements of the projected embedding, where there is a projection.
        projected: whether there is one; None where the file does not say.
        hidden_act: ``quick_gelu``, ``gelu`` (exact) or ``gelu_new`` (tanh).
        layer_norm_eps: of the norms.
        eos_token_id: the token whose place the pooled embedding is taken from; 2 in old
            files, which means the largest id.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    projection_dim: int
    projected: bool | None
    hidden_act: str
    layer_norm_eps: float
    eos_token_id: int

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], where: str = "config.json", *, masked: bool = False
    ) -> CLIPTextConfig:
        """
        Read the settings.

        Args:
            values: of a CLIPTextModel, or of a whole CLIPModel's ``text_config``.
            where: the file, for messages.
            masked: whether the pipeline would tell it which tokens only fill up, if it wants that.

        Raises:
            ModelError: one has a wrong type or makes no sense.
            UnsupportedModelError: the model is of another kind.
        """
        nested = values.get("text_config")
        if isinstance(nested, dict):
            values = nested
        read = FileSettings(where, values, "text encoder")
        read.expect("model_type", None, "clip_text_model", "clip")
        if masked:
            read.expect("use_attention_mask", None, False)
        kinds = values.get("architectures")
        projected = None
        if isinstance(kinds, list) and kinds:
            projected = "CLIPTextModelWithProjection" in kinds
        config = cls(
            vocab_size=read.size("vocab_size", 49408),
            hidden_size=read.size("hidden_size", 512),
            intermediate_size=read.size("intermediate_size", 2048),
            num_hidden_layers=read.size("num_hidden_layers", 12),
            num_attention_heads=read.size("num_attention_heads", 8),
            max_position_embeddings=read.size("max_position_embeddings", 77),
            projection_dim=read.size("projection_dim", 512),
            projected=projected,
            hidden_act=read.expect(
                "hidden_act", "quick_gelu", "gelu", "gelu_new", default="quick_gelu"
            ),
            layer_norm_eps=read.number("layer_norm_eps", 1e-5),
            eos_token_id=read.count("eos_token_id", 49407),
        )
        read.divides("num_attention_heads", config.num_attention_heads, config.hidden_size)
        return config


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """
    A UNet2DConditionModel.  Tuples have an entry for each level, the finest first.

    Attributes:
        sample_size: latents' height and width the model was made for, in latent pixels;
            64 where the file does not say.
        in_channels: channels of the input: latents, and mask and masked image if 9.
        out_channels: channels of the prediction.
        block_out_channels: channels of each level.
        layers_per_block: residual blocks of each level on the way down.
        down_attention: whether a level attends on the way down.
        up_attention: the same on the way up, the coarsest first.
        mid_block_type: ``UNetMidBlock2DCrossAttn``, ``UNetMidBlock2D`` or none ("").
        transformer_layers: blocks of each transformer of each level, on the way down.
        up_transformer_layers: the same on the way up, the coarsest first.
        heads: attention heads of each level (``attention_head_dim`` in the file, which
            is misnamed).
        cross_attention_dim: elements of a token of the context, of each level.
        only_cross_attention: whether the first attention of a block is to the context too.
        norm_num_groups: groups of the norms.
        norm_eps: of the norms in residual blocks.
        downsample_padding: zeros around the input of downsampling convolutions.
        conv_in_kernel: size of the first convolution.
        conv_out_kernel: size of the last one.
        flip_sin_to_cos: whether the cosines of a timestep come before the sines.
        freq_shift: of the timestep's frequencies.
        time_cond_proj_dim: elements of the guidance embedding (LCM); 0 for none.
        addition_time_embed_dim: elements for each size condition (SDXL); 0 for none.
        addition_embed_dim: elements of pooled text and size conditions together; 0 for none.
    """

    sample_size: tuple[int, int]
    in_channels: int
    out_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: tuple[int, ...]
    down_attention: tuple[bool, ...]
    up_attention: tuple[bool, ...]
    mid_block_type: str
    transformer_layers: tuple[tuple[int, ...], ...]
    up_transformer_layers: tuple[tuple[int, ...], ...]
    heads: tuple[int, ...]
    cross_attention_dim: tuple[int, ...]
    only_cross_attention: tuple[bool, ...]
    norm_num_groups: int
    norm_eps: float
    downsample_padding: int
    conv_in_kernel: int
    conv_out_kernel: int
    flip_sin_to_cos: bool
    freq_shift: float
    time_cond_proj_dim: int
    addition_time_embed_dim: int
    addition_embed_dim: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "config.json") -> UNetConfig:
        """
        Read the settings.

        Args:
            values: what the file holds.
            where: the file, for messages.

        Raises:
            ModelError: one has a wrong type or makes no sense.
            UnsupportedModelError: the model is of another kind, or has a part that the
                UNet here does not.
        """
        read = FileSettings(where, values, "UNet")
        read.expect("_class_name", None, "UNet2DConditionModel")
        for key, allowed in _UNET_FIXED.items():
            read.expect(key, *allowed)
        down = read.names("down_block_types", ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",))
        up = read.names("up_block_types", ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3)
        levels = len(down)
        if len(up) != levels:
            raise read.wrong("up_block_types", f"of another length than down_block_types, {levels}")
        channels = read.sizes("block_out_channels", levels, (320, 640, 1280, 1280))
        heads = read.sizes("attention_head_dim", levels, 8)
        for h, c in zip(heads, channels, strict=True):
            read.divides("attention_head_dim", h, c)
        layers = read.sizes("layers_per_block", levels, 2)
        groups = read.size("norm_num_groups", 32)
        for c in channels:
            read.divides("norm_num_groups", groups, c)
        added = read.expect("addition_embed_type", None, "text_time")
        mid = "UNetMidBlock2DCrossAttn"
        if "mid_block_type" in values:
            mid = read.expect("mid_block_type", None, mid, "UNetMidBlock2D") or ""
        transformers = read.depths("transformer_layers_per_block", layers, 1)
        up_key = "reverse_transformer_layers_per_block"
        up_layers = tuple(n + 1 for n in reversed(layers))
        up_transformers = (
            read.depths(up_key, up_layers, 1)
            if values.get(up_key) is not None
            else tuple((t[0],) * n for t, n in zip(reversed(transformers), up_layers, strict=True))
        )
        if values.get(up_key) is None and any(len(set(t)) > 1 for t in transformers):
            raise read.wrong(up_key, "it must say what the way up has where the way down is uneven")
        if any(len(set(t)) > 1 for t in transformers[-1:]) and mid == "UNetMidBlock2DCrossAttn":
            raise read.wrong("transformer_layers_per_block", "its last must be one number")
        return cls(
            sample_size=read.area("sample_size", 64),
            in_channels=read.size("in_channels", 4),
            out_channels=read.size("out_channels", 4),
            block_out_channels=channels,
            layers_per_block=layers,
            down_attention=_attends(read, "down_block_types", "Down", down),
            up_attention=_attends(read, "up_block_types", "Up", up),
            mid_block_type=mid,
            transformer_layers=transformers,
            up_transformer_layers=up_transformers,
            heads=heads,
            cross_attention_dim=read.sizes("cross_attention_dim", levels, 1280),
            only_cross_attention=read.flags("only_cross_attention", levels),
            norm_num_groups=groups,
            norm_eps=read.number("norm_eps", 1e-5),
            downsample_padding=read.count("downsample_padding", 1),
            conv_in_kernel=read.size("conv_in_kernel", 3),
            conv_out_kernel=read.size("conv_out_kernel", 3),
            flip_sin_to_cos=read.flag("flip_sin_to_cos", True),
            freq_shift=read.number("freq_shift", 0),
            time_cond_proj_dim=read.count("time_cond_proj_dim", 0),
            addition_time_embed_dim=read.size("addition_time_embed_dim") if added else 0,
            addition_embed_dim=(read.size("projection_class_embeddings_input_dim") if added else 0),
        )


@dataclass(frozen=True, slots=True)
class VAEConfig:
    """
    An AutoencoderKL.

    Attributes:
        in_channels: channels of an image that is encoded: 3.
        out_channels: channels of an image that is decoded: 3.
        latent_channels: channels of the latents.
        block_out_channels: channels of each level, the finest first.
        layers_per_block: residual blocks of a level of the encoder; the decoder has one more.
        norm_num_groups: groups of the norms.
        sample_size: height and width of an image the model was made for, in pixels; its
            tiles have that size.
        scaling_factor: the UNet's latents are those of the VAE times this.  Pipelines of Stable
            Diffusion take no ``shift_factor``, whatever the file says.
        use_quant_conv: whether a convolution follows the encoder.
        use_post_quant_conv: whether one comes before the decoder.
        mid_block_add_attention: whether the middle attends.
        force_upcast: whether the weights overflow f16, so that it must run in f32.
    """

    in_channels: int
    out_channels: int
    latent_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: int
    norm_num_groups: int
    sample_size: int
    scaling_factor: float
    use_quant_conv: bool
    use_post_quant_conv: bool
    mid_block_add_attention: bool
    force_upcast: bool

    @property
    def scale(self) -> int:
        """Pixels of an image along each side of one latent pixel."""
        return int(2 ** (len(self.block_out_channels) - 1))

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "config.json") -> VAEConfig:
        """
        Read the settings.

        Args:
            values: what the file holds.
            where: the file, for messages.

        Raises:
            ModelError: one has a wrong type or makes no sense.
            UnsupportedModelError: the model is of another kind.
        """
        read = FileSettings(where, values, "VAE")
        read.expect("_class_name", None, "AutoencoderKL")
        for key in ("latents_mean", "latents_std"):
            read.expect(key, None)
        read.expect("act_fn", None, "silu", "swish")
        channels = values.get("block_out_channels") or (64,)
        levels = len(channels) if isinstance(channels, list | tuple) else 1
        sizes = read.sizes("block_out_channels", levels, (64,))
        kinds = {
            "down_block_types": "DownEncoderBlock2D",
            "up_block_types": "UpDecoderBlock2D",
        }
        for key, kind in kinds.items():
            names = read.names(key, (kind,))
            if len(names) != levels:
                raise read.wrong(key, f"not {levels} names, as block_out_channels has")
            if set(names) != {kind}:
                read.refuse(key, names, (kind,))
        groups = read.size("norm_num_groups", 32)
        for size in sizes:
            read.divides("norm_num_groups", groups, size)
        scaling_factor = read.number("scaling_factor", 0.18215)
        if not 0 < scaling_factor < math.inf:
            raise read.wrong("scaling_factor", "a finite number above 0")
        return cls(
            in_channels=read.expect("in_channels", 3, default=3),
            out_channels=read.expect("out_channels", 3, default=3),
            latent_channels=read.size("latent_channels", 4),
            block_out_channels=sizes,
            layers_per_block=read.size("layers_per_block", 1),
            norm_num_groups=groups,
            sample_size=max(read.area("sample_size", 32)),
            scaling_factor=scaling_factor,
            use_quant_conv=read.flag("use_quant_conv", True),
            use_post_quant_conv=read.flag("use_post_quant_conv", True),
            mid_block_add_attention=read.flag("mid_block_add_attention", True),
            force_upcast=read.flag("force_upcast", True),
        )


# What a UNet's settings may hold where the one here does a single thing.
_UNET_FIXED: Final[Mapping[str, tuple[object, ...]]] = {
    "act_fn": (None, "silu", "swish"),
    "addition_embed_type_num_heads": (None, 64),
    "attention_type": (None, "default"),
    "center_input_sample": (None, False),
    "class_embed_type": (None,),
    "class_embeddings_concat": (None, False),
    "cross_attention_norm": (None,),
    "dual_cross_attention": (None, False),
    "encoder_hid_dim": (None,),
    "encoder_hid_dim_type": (None,),
    "mid_block_only_cross_attention": (None, False),
    "mid_block_scale_factor": (None, 1),
    "num_attention_heads": (None,),
    "num_class_embeds": (None,),
    "resnet_out_scale_factor": (None, 1),
    "resnet_skip_time_act": (None, False),
    "resnet_time_scale_shift": (None, "default"),
    "time_embedding_act_fn": (None,),
    "time_embedding_dim": (None,),
    "time_embedding_type": (None, "positional"),
    "timestep_post_act": (None,),
}


def _attends(read: FileSettings, key: str, way: str, names: tuple[str, ...]) -> tuple[bool, ...]:
    """Which of the blocks have cross-attention."""
    kinds = (f"CrossAttn{way}Block2D", f"{way}Block2D")
    for name in names:
        if name not in kinds:
            read.refuse(key, name, kinds)
    return tuple(name == kinds[0] for name in names)


__all__ = ["CLIPTextConfig", "UNetConfig", "VAEConfig"]
