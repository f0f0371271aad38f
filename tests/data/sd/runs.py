"""
Whole runs of diffusers' pipelines on the tiny models, and the random numbers they are given.

``cases()`` and ``draw`` need no torch, so that tests can take the same runs; ``run`` does.
``python tests/data/sd/runs.py`` writes the golden data, ``runs.npz``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np


HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from families import END  # noqa: E402
from families import FAMILIES  # noqa: E402
from families import drawn  # noqa: E402
from families import write_folder  # noqa: E402


PROMPT = "A red circle, left of the blue square!"
SCHEDULERS = {
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "dpmpp_2m": "DPMSolverMultistepScheduler",
    "unipc": "UniPCMultistepScheduler",
    "lcm": "LCMScheduler",
}
SIGMAS = {"karras": "use_karras_sigmas", "exponential": "use_exponential_sigmas"}
_PIPELINES = {
    ("sd", "txt2img"): "StableDiffusionPipeline",
    ("sd", "img2img"): "StableDiffusionImg2ImgPipeline",
    ("sd", "inpaint"): "StableDiffusionInpaintPipeline",
    ("xl", "txt2img"): "StableDiffusionXLPipeline",
    ("xl", "img2img"): "StableDiffusionXLImg2ImgPipeline",
    ("xl", "inpaint"): "StableDiffusionXLInpaintPipeline",
    ("lcm", "txt2img"): "LatentConsistencyModelPipeline",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    family: str
    scheduler: str
    task: str = "txt2img"
    params: dict[str, Any] = field(default_factory=dict)  # of GenerateParams

    @property
    def name(self) -> str:
        """Unique, and what random numbers are drawn by."""
        rest = (f"{key}={value}" for key, value in self.params.items())
        return " ".join([self.family, self.task, self.scheduler, *rest])


def cases() -> list[Case]:
    """The runs: every scheduler, every family, every task."""
    found = [Case(family="sd15", scheduler=name) for name in SCHEDULERS]
    found += [
        Case(family="sd15", scheduler="dpmpp_2m", params={"sigmas": "karras"}),
        Case(family="sd15", scheduler="euler", params={"sigmas": "exponential"}),
        Case(family="sd15", scheduler="euler", params={"spacing": "trailing", "guidance": 0.0}),
        Case(family="sd15", scheduler="ddim", params={"eta": 0.5, "batch": 2, "negative": "dull"}),
        Case(family="sd15", scheduler="ddim", params={"width": 72, "height": 40}),
        Case(family="sd21", scheduler="ddim"),
        Case(family="sd21", scheduler="euler", params={"negative": "dull"}),
        Case(family="sdxl", scheduler="euler"),
        Case(family="sdxl", scheduler="dpmpp_2m", params={"negative": "dull", "batch": 2}),
        Case(family="lcm", scheduler="lcm", params={"steps": 4}),
    ]
    for task, family, scheduler, params in (
        ("img2img", "sd15", "ddim", {}),
        ("img2img", "sd15", "euler", {"strength": 0.5, "batch": 2}),
        ("img2img", "sd21", "unipc", {"strength": 1.0}),
        ("img2img", "sdxl", "euler_ancestral", {"strength": 0.7}),
        ("inpaint", "sd15", "ddim", {}),
        ("inpaint", "sd15", "euler_ancestral", {"strength": 0.6}),
        ("inpaint", "sdxl", "euler", {"strength": 0.8}),
        ("inpaint", "inpaint", "ddim", {}),
        ("inpaint", "inpaint", "dpmpp_2m", {"strength": 0.6, "batch": 2}),
    ):
        found.append(Case(family=family, scheduler=scheduler, task=task, params=params))
    return found


def full(case: Case) -> dict[str, Any]:
    """All parameters of a run, as GenerateParams names them."""
    params: dict[str, Any] = {
        "prompt": PROMPT,
        "steps": 10,
        "guidance": 7.5,
        "scheduler": case.scheduler,
        **case.params,
    }
    if case.task != "txt2img":
        params["image"] = picture()
    if case.task == "inpaint":
        params["mask"] = mask()
    return params


def picture() -> np.ndarray:
    """An image to start from, u8 (64, 64, 3)."""
    y, x = np.mgrid[0:64, 0:64]
    planes = (128 + 100 * np.sin(x / 9 + phase) * np.cos(y / 7) for phase in range(3))
    return np.stack([p.astype(np.uint8) for p in planes], -1)


def mask() -> np.ndarray:
    """What is drawn anew of it: u8 (64, 64), edges between latent pixels and across them."""
    found = np.zeros((64, 64), np.uint8)
    found[16:45, 8:52] = 255
    return found


def draw(case: Case, use: str, shape: tuple[int, ...]) -> np.ndarray:
    """The noise for one use of a run: ``initial``, ``image``, ``masked``, ``step 0`` ..."""
    return drawn(f"{case.name} {use}", shape)


def write_model(path: Path, family: str) -> Path:
    """The folder of a tiny model, with tokenizers."""
    write_folder(path, family)
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    alphabet = [chr(byte if byte in own else next(rest)) for byte in range(256)]
    texts = [*alphabet, *(char + "</w>" for char in alphabet), "<|startoftext|>", "<|endoftext|>"]
    vocab = {text: index for index, text in enumerate(texts)}
    assert END == vocab["<|endoftext|>"]
    for folder in path.glob("tokenizer*"):
        config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}
        if folder.name == "tokenizer_2":
            config["pad_token"] = "!"  # noqa: S105  (as published files of XL have it)
        (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
        (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if family == "sdxl":
        index = json.loads((path / "model_index.json").read_text(encoding="utf-8"))
        index["force_zeros_for_empty_prompt"] = True
        (path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return path


def pipeline(case: Case, folder: Path) -> Any:
    """The pipeline of diffusers for a run, on the weights of the folder."""
    import diffusers
    from generate import built
    from generate import filled
    from transformers import CLIPTokenizer

    config = {**FAMILIES[case.family]["scheduler"], "clip_sample": False}
    del config["_class_name"]
    if "sigmas" in case.params:
        config[SIGMAS[case.params["sigmas"]]] = True
    if "spacing" in case.params:
        config["timestep_spacing"] = case.params["spacing"]
    parts: dict[str, Any] = {
        "scheduler": getattr(diffusers, SCHEDULERS[case.scheduler]).from_config(config)
    }
    for name, settings in FAMILIES[case.family].items():
        if name != "scheduler":
            parts[name] = built(settings)
            filled(parts[name])
    for tokenizer in folder.glob("tokenizer*"):
        parts[tokenizer.name] = CLIPTokenizer.from_pretrained(tokenizer)
    kind = {"sdxl": "xl", "lcm": "lcm"}.get(case.family, "sd")
    if kind == "xl":
        parts["force_zeros_for_empty_prompt"] = True
    else:
        parts |= {"safety_checker": None, "feature_extractor": None}
        parts["requires_safety_checker"] = False
    made = getattr(diffusers, _PIPELINES[kind, case.task])(**parts)
    made.set_progress_bar_config(disable=True)
    return made


def run(case: Case, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """
    What diffusers' pipeline gives for a run.

    Returns:
        the last latents (b, 4, h/8, w/8) f32, and the images (b, h, w, 3) in [0, 1].
    """
    import torch
    from diffusers.models.autoencoders import vae
    from PIL import Image

    made = pipeline(case, folder)
    params = full(case)
    for name in ("scheduler", "sigmas", "spacing"):
        params.pop(name, None)
    batch = params.pop("batch", 1)
    renamed = {"negative": "negative_prompt", "steps": "num_inference_steps"}
    renamed |= {"guidance": "guidance_scale", "mask": "mask_image"}
    given = {renamed.get(name, name): value for name, value in params.items()}
    for name in ("image", "mask_image"):
        if name in given:
            given[name] = Image.fromarray(given[name])
    if case.task != "txt2img":
        given.setdefault("strength", 1.0 if case.task == "inpaint" else 0.8)
    if case.task == "txt2img":
        given.setdefault("width", 64)
        given.setdefault("height", 64)
    given["num_images_per_prompt"] = batch

    # Only the image's latents, not the masked image's, where the UNet takes the former alone.
    skips = case.family == "inpaint" and given["strength"] == 1.0
    of_vae = iter(["masked"] if skips else ["image", "masked"])
    steps = iter(range(1000))

    def of(use: Any) -> Any:
        def noise(shape: Any, **_: Any) -> Any:
            # One image is encoded, and as many latents are wanted as images are drawn.
            name = use()
            values = draw(case, name, (batch, *shape[1:]))
            return torch.from_numpy(values[: shape[0]])

        return noise

    places = {
        type(made).__module__: lambda: "initial",
        type(made.scheduler).__module__: lambda: f"step {next(steps)}",
        vae.__name__: lambda: next(of_vae),
    }
    latents: list[Any] = []

    def keep(_pipe: Any, _step: int, _time: Any, values: dict[str, Any]) -> dict[str, Any]:
        latents.append(values["latents"])
        return values

    with ExitStack() as stack, torch.no_grad():
        for module, use in places.items():
            # Schedulers without fresh noise import no source of it.
            target = f"{module}.randn_tensor"
            stack.enter_context(mock.patch(target, of(use), create=True))
        images = made(
            **given,
            generator=torch.Generator(),
            output_type="np",
            callback_on_step_end=keep,
        ).images
    return latents[-1].numpy(), np.asarray(images, np.float32)


def main() -> None:
    """Write the golden data."""
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        models: dict[str, Path] = {}
        for case in cases():
            if case.family not in models:
                models[case.family] = write_model(Path(folder) / case.family, case.family)
            latents, images = run(case, models[case.family])
            print(f"{case.name}: {np.abs(latents).max():.3f}, {images.mean():.3f}")
            golden[f"{case.name}.latents"] = latents
            golden[f"{case.name}.images"] = np.round(images * 255).astype(np.uint8)
    np.savez_compressed(HERE / "runs.npz", **golden)


if __name__ == "__main__":
    main()
