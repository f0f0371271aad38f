"""
Tiny models of each family of Stable Diffusion, with random weights that need no torch.

Configs are those that diffusers and transformers write, names and shapes of the tensors
(``tensors.json``, written by ``generate.py``) too; values are drawn by name, so that every
machine has the same.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np


HERE = Path(__file__).parent
END = 513  # the end token of texts, and the largest id

_UNET = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [16, 32, 32],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "norm_num_groups": 8,
    "norm_eps": 1e-5,
    "cross_attention_dim": 24,
    "attention_head_dim": 4,
    "act_fn": "silu",
    "flip_sin_to_cos": True,
    "freq_shift": 0,
}
_VAE = {
    "_class_name": "AutoencoderKL",
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "block_out_channels": [8, 8, 16, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "sample_size": 64,
    "act_fn": "silu",
    "scaling_factor": 0.18215,
}
_TEXT = {
    "model_type": "clip_text_model",
    "architectures": ["CLIPTextModel"],
    "vocab_size": END + 1,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "projection_dim": 24,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,  # as published files of SD 1 say it
    "pad_token_id": 1,
}
_INPAINT = {**_UNET, "in_channels": 9}
_UNET_21 = {
    **_UNET,
    "attention_head_dim": [2, 4, 4],
    "use_linear_projection": True,
    "upcast_attention": True,
}
_UNET_XL = {
    **_UNET_21,
    "cross_attention_dim": 40,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 1, 2],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + 20,
}
_TEXT_XL2 = {
    **_TEXT,
    "architectures": ["CLIPTextModelWithProjection"],
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "projection_dim": 20,
    "hidden_act": "gelu",
    "eos_token_id": END,
}
_SCHEDULER = {
    "_class_name": "PNDMScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
}
_V_PREDICTION = {**_SCHEDULER, "_class_name": "DDIMScheduler", "prediction_type": "v_prediction"}

FAMILIES = {
    "sd15": {"text_encoder": _TEXT, "unet": _UNET, "vae": _VAE, "scheduler": _SCHEDULER},
    "sd21": {
        "text_encoder": {**_TEXT, "hidden_act": "gelu", "eos_token_id": END},
        "unet": _UNET_21,
        "vae": _VAE,
        "scheduler": _V_PREDICTION,
    },
    "sdxl": {
        "text_encoder": _TEXT,
        "text_encoder_2": _TEXT_XL2,
        "unet": _UNET_XL,
        "vae": {**_VAE, "scaling_factor": 0.13025},
        "scheduler": {**_SCHEDULER, "_class_name": "EulerDiscreteScheduler"},
    },
    "inpaint": {"text_encoder": _TEXT, "unet": _INPAINT, "vae": _VAE, "scheduler": _SCHEDULER},
    "lcm": {
        "text_encoder": _TEXT,
        "unet": {**_UNET, "time_cond_proj_dim": 12},
        "vae": _VAE,
        "scheduler": {**_SCHEDULER, "_class_name": "LCMScheduler"},
    },
}
"""The ``config.json`` of each component, by family and component."""

PIPELINES = {
    "sd15": "StableDiffusionPipeline",
    "sd21": "StableDiffusionPipeline",
    "sdxl": "StableDiffusionXLPipeline",
    "inpaint": "StableDiffusionInpaintPipeline",
    "lcm": "LatentConsistencyModelPipeline",
}


def drawn(name: str, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Normal numbers that depend on the name and the shape alone, f32."""
    # RandomState's streams are frozen, those of numpy's newer generators are not.
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return (values * scale).astype(np.float32)


def random_weights(tensors: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Weights by name that keep activations about as large as they come in."""
    weights = {}
    for name, sizes in tensors.items():
        shape = tuple(sizes)
        if len(shape) > 1:
            weights[name] = drawn(name, shape, 1.2 / np.prod(shape[1:]) ** 0.5)
        elif name.endswith(".weight"):  # a norm's
            weights[name] = 1 + drawn(name, shape, 0.2)
        else:
            weights[name] = drawn(name, shape, 0.2)
    return weights


def weights_of(family: str, component: str) -> dict[str, np.ndarray]:
    """The weights of one component."""
    listed = json.loads((HERE / "tensors.json").read_text(encoding="utf-8"))
    return random_weights(listed[family][component])


def write_folder(path: Path, family: str) -> Path:
    """Write a family's model as diffusers would, f32; its tokenizers' folders stay empty."""
    from safetensors.numpy import save_file

    index: dict[str, object] = {"_class_name": PIPELINES[family]}
    for name, config in FAMILIES[family].items():
        folder = path / name
        folder.mkdir(parents=True)
        if name == "scheduler":
            index[name] = ["diffusers", config["_class_name"]]
            (folder / "scheduler_config.json").write_text(json.dumps(config), encoding="utf-8")
            continue
        stem = "diffusion_pytorch_model"
        index[name] = ["diffusers", config.get("_class_name")]
        if name.startswith("text_encoder"):
            stem = "model"
            index[name] = ["transformers", config["architectures"][0]]
            tokenizer = name.replace("text_encoder", "tokenizer")
            (path / tokenizer).mkdir()
            index[tokenizer] = ["transformers", "CLIPTokenizer"]
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(weights_of(family, name), folder / f"{stem}.safetensors")
    (path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return path
