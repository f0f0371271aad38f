"""The packaged model: its files, what it draws, and the image of the README."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from propolis.config import Config
from propolis_workers.sd import GenerateParams
from propolis_workers.sd.models import find_model
from propolis_workers.sd.noise import Noise
from propolis_workers.sd.tokenizer import CLIPTokenizer


ROOT = Path(__file__).parents[3]
LENGTH = 32
OTHERS = ["", "A RED Circle,  with\ta 5 o'clock shadow!", "naïve café 図形 🟥", "x" * 90, "é" * 70]


@pytest.fixture(scope="module")
def texts(training) -> list[str]:
    """Captions of every kind, and texts that are none."""
    prompts = training("prompts")
    return [text for k in prompts.KINDS for text, _ in prompts.prompts_of(k, 100, 9)] + OTHERS


@pytest.fixture(scope="module")
def images(readme_image):
    """The images of the README, drawn now."""
    return readme_image.draw()


def test_files(folder):
    """All files together, which the wheel carries, have at most 30 MB; weights are f16."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 30_000_000
    weights = [file for file in files if file.suffix == ".safetensors"]
    assert {"text_encoder", "unet", "vae"} == {file.parent.name for file in weights}
    for file in weights:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__", None)
        assert {"F16"} == {tensor["dtype"] for tensor in header.values()}


def test_is_the_default(folder):
    """The worker finds the model when none is named, without importing its package."""
    assert folder.resolve() == find_model(Config.load()).resolve()
    code = (
        "import sys; from propolis_workers.sd.models import packaged_model;"
        "packaged_model(); print('propolis_tiny_sd' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()


def test_prompts_fit(folder, texts):
    """No caption is cut, and each word of a caption is a token of its own."""
    tokenizer = CLIPTokenizer.from_folder(folder / "tokenizer")
    for text in texts[: -len(OTHERS)]:
        ids, cut = tokenizer.encode(text, LENGTH)
        assert not cut, text
        used = ids.index(tokenizer.eos_id) - 1
        assert len(text.replace(",", " ,").split()) == used, text


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tokenizer_live(folder, texts, oracles):
    """Our ids of captions and of other texts are those that transformers gives."""
    from transformers import CLIPTokenizer as Theirs

    theirs = Theirs.from_pretrained(folder / "tokenizer")
    expected = theirs(texts, padding="max_length", max_length=LENGTH, truncation=True)["input_ids"]
    ours = CLIPTokenizer.from_folder(folder / "tokenizer")
    assert expected == [ours.encode(text, LENGTH).ids for text in texts]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_drawing_live(folder, model, readme_image, oracles):
    """From the same noise diffusers draws the same image, to one level of 255."""
    import torch
    from diffusers import StableDiffusionPipeline

    prompt = readme_image.PROMPTS[0]
    ours = model.generate(GenerateParams(prompt=prompt, seed=1, steps=10, guidance=4.0))
    pipeline = StableDiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    noise = Noise(1, ours.latents.shape, model.device).initial().numpy()
    theirs = pipeline(
        prompt,
        num_inference_steps=10,
        guidance_scale=4.0,
        latents=torch.from_numpy(noise),
        output_type="np",
    ).images[0]
    np.testing.assert_allclose(ours[0], theirs * 255, rtol=0, atol=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_what_is_drawn_obeys(training, readme_image, images, number):
    """Count, colours, shapes, sizes, places and background are those of the prompt."""
    verdict = training("checker").check(readme_image.PROMPTS[number], images[number])
    assert verdict.everything, verdict


def test_half_of_them_are_new(training, readme_image):
    """Two of the prompts show pairs of colour and shape that training never saw."""
    held_out = training("scenes").HELD_OUT_PAIRS
    understand = training("captions").understand
    said = [understand(prompt).things for prompt in readme_image.PROMPTS]
    assert 2 == sum((t.colour, t.shape) in held_out for things in said for t in things)


@pytest.mark.slow
def test_guidance_counts(training, model):
    """Without guidance the same prompt, seed and steps give another image."""
    params = {"prompt": "a small blue star at the bottom left", "seed": 3, "steps": 4}
    with_it, without = (
        model.generate(GenerateParams(**params, guidance=guidance))[0] for guidance in (4.0, 1.0)
    )
    assert not np.array_equal(with_it, without)


@pytest.mark.slow
def test_readme_image(readme_image, images):
    """
    The image of the README is what the model draws now.

    Other machines' matrix products round otherwise; OpenBLAS's kernels for the oldest and for
    the newest x86-64 differ by one level in two of 100000 values.
    """
    expected = np.asarray(Image.open(readme_image.FILE)).astype(np.float64)
    drawn = readme_image.row(images).astype(np.float64)
    assert expected.shape == drawn.shape
    assert np.abs(expected - drawn).mean() <= 0.05
    assert np.abs(expected - drawn).max() <= 4


def test_readme_says_the_prompts(readme_image):
    """The README shows that file, with the prompts that it was drawn from."""
    text = " ".join((ROOT / "README.md").read_text().split())
    assert readme_image.FILE.relative_to(ROOT).as_posix() in text
    for prompt in readme_image.PROMPTS:
        assert prompt in text
