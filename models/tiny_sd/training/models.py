"""The three networks and the noise schedule, as diffusers and transformers define them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

import torch
from diffusers import AutoencoderKL
from diffusers import DDIMScheduler
from diffusers import StableDiffusionPipeline
from diffusers import UNet2DConditionModel
from shapes import SIZE
from tokenizer_files import LENGTH
from transformers import CLIPTextConfig
from transformers import CLIPTextModel


if TYPE_CHECKING:
    from pathlib import Path

    from transformers import CLIPTokenizer

FACTOR: Final = 4  # pixels of a latent's side
LATENTS: Final = 4  # channels


@dataclass(frozen=True)
class Widths:
    """How wide the networks are."""

    vae: tuple[int, int, int] = (32, 64, 96)
    unet: tuple[int, int, int] = (96, 160, 160)
    text: int = 160
    text_layers: int = 4
    head: int = 32
    groups: int = 16


MINUSCULE: Final = Widths((16, 16, 16), (32, 32, 32), 32, 1, 32, 8)


def make_vae(widths: Widths) -> AutoencoderKL:
    """Three levels: 64 x 64 pixels are 16 x 16 latents."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=widths.vae,
        layers_per_block=1,
        latent_channels=LATENTS,
        norm_num_groups=widths.groups,
        sample_size=SIZE,
    )


def make_unet(widths: Widths) -> UNet2DConditionModel:
    """Attention at 16 x 16, 8 x 8 and, in the middle, 4 x 4."""
    return UNet2DConditionModel(
        sample_size=SIZE // FACTOR,
        in_channels=LATENTS,
        out_channels=LATENTS,
        block_out_channels=widths.unet,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=widths.text,
        # diffusers' name for the number of heads
        attention_head_dim=[width // widths.head for width in widths.unet],
        norm_num_groups=widths.groups,
    )


def make_text_encoder(widths: Widths, tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """A causal transformer, its parameters drawn as CLIP's are."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=widths.text,
            intermediate_size=4 * widths.text,
            num_hidden_layers=widths.text_layers,
            num_attention_heads=widths.text // widths.head,
            max_position_embeddings=LENGTH,
            hidden_act="quick_gelu",
            projection_dim=widths.text,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def make_scheduler() -> DDIMScheduler:
    """
    Velocity prediction on a schedule that ends darker than Stable Diffusion's.

    With beta_end 0.02 the last step holds 1.5 % of the signal instead of 6.8 %, so that
    plain black and white backgrounds come out of pure noise.
    """
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.02,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def make_pipeline(
    vae: AutoencoderKL,
    text_encoder: CLIPTextModel,
    tokenizer: CLIPTokenizer,
    unet: UNet2DConditionModel,
) -> StableDiffusionPipeline:
    """The parts as one pipeline, without a safety checker."""
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=make_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_pipeline(folder: Path, device: str) -> StableDiffusionPipeline:
    """An exported folder, computed in f32."""
    pipeline = StableDiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device)
