"""
A whole image of Stable Diffusion 1.5 on the CPU, 512 x 512 pixels in 20 steps: ours and diffusers.

The model has full size and random weights, stored in f16.  A round is an image of each contender,
from the same noise, in a process of its own: text encoder, 20 steps with guidance, and decoding.
In bf16 torch has the channels last, as its docs advise.  ``--picture FILE`` keeps both images,
ours to the left, small.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import child
from _common import medians
from PIL import Image
from sd_cpu import THREADS
from sd_cpu import write_model


STEPS = 20
PROMPT = "a red circle to the left of a blue square"
SEED = 1
PICTURE = 192  # pixels of a side of the small ones

# The published configurations (vae/config.json and text_encoder/config.json).
VAE: dict[str, Any] = {
    "_class_name": "AutoencoderKL",
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "sample_size": 512,
    "act_fn": "silu",
}
TEXT: dict[str, Any] = {
    "architectures": ["CLIPTextModel"],
    "model_type": "clip_text_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "projection_dim": 768,
    "vocab_size": 49408,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
SCHEDULER: dict[str, Any] = {
    "_class_name": "DDIMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "prediction_type": "epsilon",
}


def main() -> None:
    """Let contenders draw in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="images of each contender")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--folder", type=Path, help="keep the weights there, or find them there")
    parser.add_argument("--picture", type=Path, help="where both images are written, side by side")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contender:
        draw = {"propolis": _propolis, "diffusers": _diffusers}[asked.contender]
        print(json.dumps(draw(asked.folder, asked.dtype)))
    elif asked.folder:
        compare(asked.folder.resolve(), asked)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), asked)


def compare(folder: Path, asked: argparse.Namespace) -> None:
    """Print seconds and memory of both, medians of the rounds, and how far the images differ."""
    dtype = asked.dtype
    if not (folder / "model_index.json").exists():
        write_models(folder)
    taken: dict[str, list[dict[str, float]]] = {"propolis": [], "diffusers": []}
    for _ in range(asked.rounds):
        for name, figures in taken.items():
            arguments = ("--contender", name, "--folder", str(folder), "--dtype", dtype)
            figures.append(child(__file__, *arguments))
            print(name, figures[-1], flush=True)
    ours, theirs = (medians(figures) for figures in taken.values())
    print(f"\n{dtype:24} {'propolis':>9} {'diffusers':>9}  ratio")
    for what in ours:
        print(f"{what:24} {ours[what]:9.2f} {theirs[what]:9.2f} {ours[what] / theirs[what]:6.2f}")
    images = [np.load(folder / f"{name}.npy") for name in taken]
    apart = np.abs(images[0].astype(int) - images[1])
    print(f"pixels differ by {apart.mean():.3f} of 255 on average, by {apart.max()} at most")
    if asked.picture:
        side = PICTURE
        small = [Image.fromarray(each).resize((side, side), Image.LANCZOS) for each in images]
        both = Image.new("RGB", (2 * side, side))
        for number, each in enumerate(small):
            both.paste(each, (number * side, 0))
        both.save(asked.picture)


def noise() -> np.ndarray:
    """What ours begins with."""
    from propolis import default_runtime
    from propolis_workers.sd.noise import Noise

    made: np.ndarray = (
        Noise(SEED, (1, 4, 64, 64), default_runtime().device("cpu")).initial().numpy()
    )
    return made


def write_models(folder: Path) -> None:
    """All of a pipeline in the layout of diffusers; the tokenizer is the packaged model's."""
    import torch
    from diffusers import AutoencoderKL
    from safetensors.numpy import save_file
    from transformers import CLIPTextConfig
    from transformers import CLIPTextModel

    import propolis_tiny_sd

    packaged = Path(propolis_tiny_sd.__file__).parent / "model"
    shutil.copytree(packaged / "tokenizer", folder / "tokenizer")
    settings = folder / "tokenizer" / "tokenizer_config.json"
    longest = {"model_max_length": TEXT["max_position_embeddings"]}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | longest))
    index = json.loads((packaged / "model_index.json").read_text())
    (folder / "unet").mkdir()
    write_model(folder / "unet")
    with torch.device("meta"):
        models = {
            ("vae", "diffusion_pytorch_model"): (AutoencoderKL.from_config(VAE), VAE),
            ("text_encoder", "model"): (CLIPTextModel(CLIPTextConfig(**TEXT)), TEXT),
        }
    rng = np.random.default_rng(2)
    for (name, file), (model, config) in models.items():
        tensors = {}
        for key, meta in model.state_dict().items():
            shape = tuple(meta.shape)
            if len(shape) == 1:
                is_norm = "norm" in key and key.endswith("weight")
                tensors[key] = np.full(shape, 1 if is_norm else 0, np.float16)
            elif meta.is_floating_point():
                deviation = math.prod(shape[1:]) ** -0.5
                values = rng.standard_normal(shape, np.float32) * np.float32(deviation)
                tensors[key] = values.astype(np.float16)
        (folder / name).mkdir()
        save_file(tensors, folder / name / f"{file}.safetensors", {"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))
    index |= {"scheduler": ["diffusers", SCHEDULER["_class_name"]]}
    (folder / "model_index.json").write_text(json.dumps(index))


def _peak_gb() -> float:
    """The most memory that was resident, mapped files included."""
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024 / 1e9


def _propolis(folder: Path, dtype: str) -> dict[str, float]:
    from propolis import Config
    from propolis import Runtime
    from propolis.dtypes import parse_dtype
    from propolis_workers.sd.params import GenerateParams
    from propolis_workers.sd.pipeline import StableDiffusion

    start = time.perf_counter()
    runtime = Runtime.start(Config(threads=THREADS))
    model = StableDiffusion.load(folder, runtime=runtime, dtype=parse_dtype(dtype))
    loaded = time.perf_counter()
    params = GenerateParams(prompt=PROMPT, seed=SEED, steps=STEPS, width=512, height=512)
    images = model.generate(params)
    end = time.perf_counter()
    np.save(folder / "propolis.npy", images[0])
    return {
        "load, s": loaded - start,
        "20 steps and text, s": end - loaded - images.seconds["decode"],
        "decode, s": images.seconds["decode"],
        "image, s": end - loaded,
        "peak memory, GB": _peak_gb(),
    }


def _diffusers(folder: Path, dtype: str) -> dict[str, float]:
    import torch
    from diffusers import StableDiffusionPipeline

    begin = torch.from_numpy(noise())
    start = time.perf_counter()
    torch.set_num_threads(THREADS)
    of = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    pipeline = StableDiffusionPipeline.from_pretrained(
        folder, torch_dtype=of, safety_checker=None, requires_safety_checker=False
    )
    pipeline.set_progress_bar_config(disable=True)
    if dtype == "bf16":
        for part in (pipeline.unet, pipeline.vae):
            part.to(memory_format=torch.channels_last)
    loaded = time.perf_counter()
    with torch.inference_mode():
        latents = pipeline(
            PROMPT,
            num_inference_steps=STEPS,
            latents=begin.to(of),
            output_type="latent",
        ).images
        drawn = time.perf_counter()
        decoded = pipeline.vae.decode(latents / pipeline.vae.config.scaling_factor).sample
        pixels = pipeline.image_processor.postprocess(decoded, output_type="np")
    end = time.perf_counter()
    np.save(folder / "diffusers.npy", (pixels[0] * 255).round().astype(np.uint8))
    return {
        "load, s": loaded - start,
        "20 steps and text, s": drawn - loaded,
        "decode, s": end - drawn,
        "image, s": end - loaded,
        "peak memory, GB": _peak_gb(),
    }


if __name__ == "__main__":
    sys.exit(main())
