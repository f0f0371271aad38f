"""Settings of the models: what is read of them, and what is refused."""

from __future__ import annotations

import pytest

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.sd.config import CLIPTextConfig
from propolis_workers.sd.config import UNetConfig
from propolis_workers.sd.config import VAEConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_embed_type": "timestep"}, "class_embed_type is 'timestep', .* supported: none"),
        ({"_class_name": "UNet3DConditionModel"}, "'UNet3D.* supported: none, UNet2DCondition"),
        ({"encoder_hid_dim_type": "image_proj"}, "encoder_hid_dim_type is 'image_proj'"),
        ({"addition_embed_type": "image"}, "addition_embed_type is 'image'.*none, text_time"),
        ({"down_block_types": ["AttnDownBlock2D"] * 3}, "'AttnDownBlock2D'.*CrossAttnDownBlock2D"),
        ({"up_block_types": ["KUpBlock2D"] * 3}, "up_block_types is 'KUpBlock2D'"),
        ({"mid_block_type": "MidBlock"}, "mid_block_type is 'MidBlock'"),
        ({"resnet_time_scale_shift": "scale_shift"}, "resnet_time_scale_shift is 'scale_shift'"),
        ({"time_embedding_type": "fourier"}, "time_embedding_type is 'fourier'"),
        ({"dual_cross_attention": True}, "dual_cross_attention is 'True'"),
        ({"num_attention_heads": 8}, "num_attention_heads is '8'"),
        ({"act_fn": "gelu"}, "act_fn is 'gelu'"),
    ],
)
def test_unsupported_unet(families, changes, message):
    """What the UNet here does not do is refused, with what it does."""
    with pytest.raises(UnsupportedModelError, match=rf"c\.json: .*{message}"):
        UNetConfig.from_json(families.FAMILIES["sd15"]["unet"] | changes, "c.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_out_channels": [16, 32]}, "block_out_channels is .* each of 3 levels"),
        ({"block_out_channels": [16, 32, "x"]}, "whole numbers"),
        ({"attention_head_dim": [4, 4]}, "attention_head_dim is .* each of 3 levels"),
        ({"attention_head_dim": 5}, "attention_head_dim 5 does not divide .* 16 channels"),
        ({"norm_num_groups": 7}, "norm_num_groups 7 does not divide"),
        ({"norm_num_groups": 0}, "norm_num_groups is '0', supported: 1 to"),
        ({"layers_per_block": -1}, "layers_per_block is '-1'"),
        ({"in_channels": "4"}, "in_channels is '4', of the wrong type"),
        ({"norm_eps": None, "sample_size": [64, None]}, "sample_size"),
        ({"up_block_types": ["UpBlock2D"]}, "another length than down_block_types, 3"),
        ({"up_block_types": []}, "not a list of names"),
        ({"transformer_layers_per_block": [1, [1, 2], 1]}, "not 1 depths"),
        ({"layers_per_block": 2, "transformer_layers_per_block": [[1, 2], 1, 1]}, "uneven"),
        ({"only_cross_attention": "yes"}, "only_cross_attention is 'yes'"),
        ({"addition_embed_type": "text_time"}, "addition_time_embed_dim is missing"),
    ],
)
def test_bad_unet(families, changes, message):
    """Settings that make no sense are named."""
    with pytest.raises(ModelError, match=rf"c\.json: .*{message}"):
        UNetConfig.from_json(families.FAMILIES["sd15"]["unet"] | changes, "c.json")


def test_unet_defaults():
    """An empty file describes Stable Diffusion 1 but for its context, as in diffusers."""
    config = UNetConfig.from_json({})
    assert (320, 640, 1280, 1280) == config.block_out_channels
    assert (8, 8, 8, 8) == config.heads
    assert (True, True, True, False) == config.down_attention
    assert (False, True, True, True) == config.up_attention
    assert (1280,) * 4 == config.cross_attention_dim
    assert (64, 64) == config.sample_size


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"_class_name": "AutoencoderTiny"}, UnsupportedModelError, "supported: none, Autoencod"),
        ({"latents_mean": [0.0]}, UnsupportedModelError, "latents_mean"),
        ({"act_fn": "relu"}, UnsupportedModelError, "act_fn is 'relu'"),
        ({"down_block_types": ["AttnDownEncoderBlock2D"] * 4}, UnsupportedModelError, "AttnDown"),
        ({"up_block_types": ["UpDecoderBlock2D"]}, ModelError, "not 4 names"),
        ({"norm_num_groups": 3}, ModelError, "norm_num_groups 3 does not divide"),
        ({"scaling_factor": "big"}, ModelError, "scaling_factor is 'big'"),
        ({"scaling_factor": 0}, ModelError, "scaling_factor is '0', a finite number above 0"),
    ],
)
def test_bad_vae(families, changes, kind, message):
    """So are those of a VAE."""
    with pytest.raises(kind, match=rf"v\.json: .*{message}"):
        VAEConfig.from_json(families.FAMILIES["sd15"]["vae"] | changes, "v.json")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"model_type": "t5"}, UnsupportedModelError, "model_type is 't5'"),
        ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act is 'relu'"),
        ({"num_attention_heads": 5}, ModelError, "num_attention_heads 5 does not divide"),
        ({"vocab_size": 0}, ModelError, "vocab_size is '0'"),
    ],
)
def test_bad_text_encoder(families, changes, kind, message):
    """So are those of a text encoder."""
    with pytest.raises(kind, match=rf"t\.json: .*{message}"):
        CLIPTextConfig.from_json(families.FAMILIES["sd15"]["text_encoder"] | changes, "t.json")


STRANGE = [None, True, 0, -1, 1.5, 10**400, 1e308, "x", [], [0], [None] * 3, [[]], [[1]] * 3, {}]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(CLIPTextConfig, "text_encoder_2"), (UNetConfig, "unet"), (VAEConfig, "vae")],
)
def test_strange_values(families, kind, name):
    """Whatever a file holds, its settings are read or refused in one line that names it."""
    own = families.FAMILIES["sdxl"][name]
    keys = {*own, *kind.__slots__, "text_config", "reverse_transformer_layers_per_block"}
    for key in sorted(keys):
        for value in STRANGE:
            try:
                kind.from_json(own | {key: value}, "c.json")
            except ModelError as error:
                assert str(error).startswith("c.json: ")  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017


def test_nested_text_config(families):
    """The settings of a whole CLIP model hold those of its text encoder."""
    own = families.FAMILIES["sd15"]["text_encoder"]
    nested = CLIPTextConfig.from_json({"model_type": "clip", "text_config": own})
    assert CLIPTextConfig.from_json(own) == nested
