"""What drawing gives, and what it refuses; that the numbers are diffusers' says test_runs."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from propolis import default_runtime
from propolis import dtypes
from propolis.errors import ConfigError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import LoRA
from propolis_workers.sd import StableDiffusion
from propolis_workers.sd.images import read_metadata
from propolis_workers.sd.noise import Noise


def params(**changes):
    """Few steps of a deterministic scheduler."""
    return GenerateParams(**{"prompt": "a red circle", "steps": 2, "scheduler": "euler", **changes})


@pytest.fixture
def sd(pipelines):
    """The tiny SD 1.5."""
    return pipelines("sd15")


@pytest.fixture
def changed(complete, tmp_path):
    """Return a function that copies a family's folder with other values of one tensor."""

    def copy(component, tensor, value, family="sd15"):
        folder = shutil.copytree(complete(family), tmp_path / "changed")
        (file,) = (folder / component).glob("*.safetensors")
        weights = load_file(file)
        weights[tensor] = np.full_like(weights[tensor], value)
        save_file(weights, file)
        return folder

    return copy


def test_seed(sd):
    """A seed repeats an image; another one, or none, gives another."""
    one, again, other = (sd.generate(params(seed=seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one[0], again[0])
    assert (one[0] != other[0]).mean() > 0.5
    free, freer = (sd.generate(params()) for _ in range(2))
    assert free.params.seed != freer.params.seed


def test_batch(sd):
    """Images of a batch are those of the seeds one apart, each alone."""
    batch = sd.generate(params(seed=7, batch=3, scheduler="euler_ancestral", negative="dull"))
    assert [(64, 64, 3)] * 3 == [image.shape for image in batch]
    for n, image in enumerate(batch):
        alone = sd.generate(params(seed=7 + n, scheduler="euler_ancestral", negative="dull"))
        assert np.abs(alone[0].astype(int) - image).max() <= 1
        assert np.abs(alone.latents[0] - batch.latents[n]).max() <= 1e-5 * np.ptp(batch.latents)


def test_noise():
    """Each image has the numbers of its own seed, whatever the batch; no use has another's."""
    cpu = default_runtime().cpu
    batch, alone = Noise(5, (3, 4, 8, 8), cpu), Noise(7, (1, 4, 8, 8), cpu)
    uses = ("initial", "of_image", "of_masked_image")
    drawn = [getattr(alone, use)().numpy() for use in uses]
    drawn += [alone.of_step(i).numpy() for i in range(3)]
    for use, values in zip(uses, drawn, strict=False):
        np.testing.assert_array_equal(getattr(batch, use)().numpy()[2:], values)
    np.testing.assert_array_equal(batch.of_step(2).numpy()[2:], drawn[-1])
    flat = np.concatenate([values.ravel() for values in drawn])
    assert len(flat) == len(np.unique(flat))
    assert abs(flat.mean()) < 0.1
    assert abs(flat.std() - 1) < 0.1


def test_guidance(pipelines):
    """At 1 and below there is none, and the UNet works for one image, not two."""
    sd = pipelines("sd15")
    unet = sd.components.unet
    shapes = []

    class Watched:
        config = unet.config

        def __call__(self, x, *rest):
            shapes.append(x.shape)
            return unet(x, *rest)

    components = dataclasses.replace(sd.components, unet=Watched())
    watched = StableDiffusion(sd.path, components, sd.device, sd.dtype)
    images = [watched.generate(params(seed=1, guidance=scale)) for scale in (0.0, 1.0, 7.5)]
    assert [(1, 4, 8, 8)] * 4 + [(2, 4, 8, 8)] * 2 == shapes
    np.testing.assert_array_equal(images[0][0], images[1][0])
    assert (images[0][0] != images[2][0]).mean() > 0.5


def test_negative(pipelines):
    """No negative prompt is the empty one, save where SDXL's index asks for zeros."""
    for family, same in (("sd15", True), ("sdxl", False)):
        sd = pipelines(family)
        none, empty, some = (
            sd.generate(params(seed=1, negative=negative)).latents
            for negative in (None, "", "dull")
        )
        assert same == np.array_equal(none, empty)
        assert not np.array_equal(some, empty)


def test_previews(sd):
    """After each step there is a preview; where the last step ends, it is the image."""
    seen = []
    images = sd.generate(
        params(seed=3, steps=4, batch=2),
        progress=lambda done, steps, preview: seen.append((done, steps, preview())),
    )
    assert [(1, 4), (2, 4), (3, 4), (4, 4)] == [step[:2] for step in seen]
    off = [np.abs(pixels.astype(int) - images[0]).mean() for _, _, pixels in seen]
    assert off[0] > off[2] > off[3]
    assert off[3] <= 1


def test_cut(sd, capsys):
    """What did not fit into the text encoder is in the result."""
    long = "x " * 75 + "circle"
    images = sd.generate(params(prompt=long, negative="y" + long))
    assert {"prompt": "circle", "negative": "circle"} == {
        name: text[-6:] for name, text in images.cut.items()
    }
    assert {} == sd.generate(params()).cut
    assert capsys.readouterr().err.count("prompt.cut") == 2


def test_sizes(sd, pipelines):
    """The model's own size, the size asked for, or that of the image to start from."""
    assert (64, 64, 3) == sd.generate(params())[0].shape
    assert (40, 88, 3) == sd.generate(params(width=88, height=40))[0].shape
    image = np.zeros((24, 56, 3), np.uint8)
    assert image.shape == sd.generate(params(image=image))[0].shape
    assert (32, 40, 3) == sd.generate(params(image=image, width=40, height=32))[0].shape


def test_mask_keeps(pipelines, runs):
    """Where the mask is black, latents are those of the image."""
    sd = pipelines("sd15")
    mask = np.zeros((64, 64), np.uint8)
    black = sd.generate(params(seed=2, image=runs.picture(), mask=mask)).latents
    mask[:, 32:] = 255
    half = sd.generate(params(seed=2, image=runs.picture(), mask=mask)).latents
    np.testing.assert_array_equal(black[..., :4], half[..., :4])
    assert not np.isclose(black[..., 4:], half[..., 4:]).any()


def test_lora(complete, tmp_path):
    """A LoRA changes the image, and leaves nothing behind."""
    sd = StableDiffusion.load(complete("sd15"))
    before = sd.generate(params(seed=1))
    name = "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_v"
    rows, columns = sd.components.modules[name].weight.shape
    random = np.random.default_rng(0)
    tensors = {
        f"{name}.lora_A.weight": random.normal(size=(2, columns)).astype("f4"),
        f"{name}.lora_B.weight": random.normal(size=(rows, 2)).astype("f4"),
    }
    save_file(tensors, tmp_path / "some.safetensors")
    lora = LoRA.open(tmp_path / "some.safetensors")
    sd.apply_lora(lora, 0.5)
    on = sd.generate(params(seed=1))
    assert [{"name": "some.safetensors", "strength": 0.5, "sha256": lora.sha256}] == (
        on.source["loras"]
    )
    assert (on[0] != before[0]).mean() > 0.1
    sd.remove_lora(lora)
    after = sd.generate(params(seed=1))
    np.testing.assert_array_equal(after.latents, before.latents)
    assert [] == after.source["loras"]


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
def test_half(complete, sd, dtype):
    """In 16 bits the image is about the same."""
    half = StableDiffusion.load(complete("sd15"), dtype=dtype)
    images = [model.generate(params(seed=1, guidance=2.0)) for model in (sd, half)]
    assert np.float32 == images[1].latents.dtype
    off = np.abs(images[0].latents - images[1].latents).mean() / np.ptp(images[0].latents)
    assert 0 < off < (0.001 if dtype is dtypes.f16 else 0.01)


def test_tiles(sd):
    """Decoding in tiles is noted, and gives about the same image."""
    whole = sd.generate(params(seed=1, width=128, height=96))
    tiled = sd.generate(params(seed=1, width=128, height=96), tiled="always")
    assert ["decoded in tiles of 64 pixels, which blend into each other"] == tiled.notes
    assert np.abs(whole[0].astype(int) - tiled[0]).mean() < 16
    np.testing.assert_array_equal(whole.latents, tiled.latents)


def test_stand_in(sd):
    """A scheduler that stands in for the model's is noted."""
    images = sd.generate(params(scheduler=None))
    note = "the scheduler dpmpp_2m stands in for the model's PNDMScheduler"
    assert ([note], "dpmpp_2m") == (images.notes, images.params.scheduler)


def test_save(sd, tmp_path):
    """Each image has a file with its metadata."""
    images = sd.generate(params(seed=4, batch=2))
    paths = images.save(tmp_path / "x.png")
    assert [tmp_path / "x-1.png", tmp_path / "x-2.png"] == paths
    assert images.metadata(1) == read_metadata(paths[1])
    assert 1 == read_metadata(paths[1])["index"]
    assert [tmp_path / "y.png"] == sd.generate(params()).save(str(tmp_path / "y.png"))


def test_guidance_embedding():
    """The embedded scale is that of the formula in float64 (Meng et al. 2023, as in LCM)."""
    from propolis_workers.sd.text import guidance_embedding

    found = guidance_embedding(8.5, 7, 2, default_runtime().cpu).numpy()
    frequencies = 10_000.0 ** -(np.arange(3) / 2)
    angles = 7.5 * 1000 * frequencies
    truth = [*np.sin(angles), *np.cos(angles), 0]
    np.testing.assert_allclose(found, [truth] * 2, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"width": 100}, UsageError, "width 100 is not a multiple of 8, 96 and 104 are: give one"),
        ({"height": 4}, UsageError, "height 4 is not a multiple of 8, 8 is: give"),
        ({"height": 0}, UsageError, "height 0 is not a multiple of 8, 8 is"),
        ({"width": -8}, UsageError, "width -8 is not a multiple of 8, 8 is"),
        ({"steps": 0}, UsageError, "steps is 0; scheduler euler takes 1 to 1000"),
        ({"steps": 1001}, UsageError, "steps is 1001; scheduler euler takes 1 to 1000"),
        ({"batch": 0}, UsageError, "batch is 0; at least 1"),
        ({"guidance": -1.0}, UsageError, "guidance is -1.0; it must be 0 or greater"),
        ({"guidance": float("nan")}, UsageError, "guidance is nan"),
        ({"guidance": 1.0, "negative": "x"}, UsageError, "negative prompt has no effect at guid"),
        ({"seed": -1}, UsageError, r"seed -1 is not in \[0, 2\*\*64\)$"),
        ({"seed": 2**64}, UsageError, r"is not in \[0, 2\*\*64\)$"),
        ({"seed": 2**64 - 2, "batch": 3}, UsageError, "and those of the 2 images after"),
        (
            {"scheduler": "eular"},
            ConfigError,
            "no scheduler 'eular'; supported: ddim, .*mean euler",
        ),
        ({"sigmas": "karas"}, UsageError, "no sigmas 'karas'; supported: normal, karras, expon"),
        ({"spacing": "leadin"}, ConfigError, "timestep_spacing is 'leadin'; supported: leading"),
        ({"scheduler": "ddim", "sigmas": "karras"}, ConfigError, "ddim has no setting 'use_karras"),
        ({"eta": 0.5}, ConfigError, "scheduler euler has no setting 'eta'"),
        ({"eta": 2.0, "scheduler": "ddim"}, ConfigError, "eta is 2.0; supported: 0 to 1"),
        ({"strength": 0.5}, UsageError, "strength is about the image to start from"),
        ({"image": (64, 64, 3), "strength": 0.0}, UsageError, "strength is 0.0; supported"),
        ({"image": (64, 64, 3), "strength": 1.5}, UsageError, "strength is 1.5; supported"),
        ({"image": (64, 64, 3), "strength": 0.3}, UsageError, "strength 0.3 of 2 steps leaves no"),
        ({"image": (60, 64, 3)}, UsageError, "the image's height 60 is not a multiple of 8, 56 a"),
        ({"mask": (64, 64)}, UsageError, "a mask says which part of an image"),
        (
            {"image": (64, 64, 3), "mask": (64, 32)},
            UsageError,
            "the mask is 32x64 pixels, the image 64x64: make the mask as large",
        ),
        ({"prompt": "\ud800"}, UsageError, "the prompt holds a lone surrogate"),
    ],
)
def test_bad_parameters(sd, changes, error, message):
    """What cannot be drawn is refused, with what was given and what can be."""
    arrays = {k: np.zeros(v, np.uint8) for k, v in changes.items() if k in ("image", "mask")}
    with pytest.raises(error, match=message):
        sd.generate(params(**changes | arrays))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("image", np.zeros((8, 8, 3)), r"the image is float64 of shape \(8, 8, 3\); supported: ui"),
        (
            "image",
            np.zeros((8, 8, 4), np.uint8),
            r"\(8, 8, 4\); supported: uint8 \(height, width, 3",
        ),
        ("image", np.zeros((0, 8, 3), np.uint8), r"the image is uint8 of shape \(0, 8, 3\)"),
        (
            "mask",
            np.zeros((8, 8, 1), np.uint8),
            r"the mask is uint8 of shape \(8, 8, 1\); supported",
        ),
        (
            "mask",
            np.zeros((8, 8), bool),
            r"the mask is bool of shape \(8, 8\); supported: uint8 \(h",
        ),
    ],
)
def test_bad_arrays(sd, name, array, message):
    """Arrays of another kind than images and masks are refused."""
    arrays = {"image": np.zeros((8, 8, 3), np.uint8), name: array}
    with pytest.raises(UsageError, match=message):
        sd.generate(params(**arrays))


def test_inpainting_models(pipelines, runs):
    """A UNet that paints into images needs one, and a mask."""
    for given in ({}, {"image": runs.picture()}):
        with pytest.raises(
            UsageError, match="inpaint paints into images: give an image and a mask"
        ):
            pipelines("inpaint").generate(params(**given))


def test_nan_latents(changed):
    """Latents that are no longer finite stop the run, which names the step and who gave them."""
    sd = StableDiffusion.load(changed("unet", "conv_out.bias", np.nan))
    seen = []
    with pytest.raises(ModelError, match=r"step 1 of 3 \(timestep 999\): the UNet gave values"):
        sd.generate(params(steps=3), progress=lambda *step: seen.append(step))
    assert not seen


def test_nan_at_a_later_step(pipelines):
    """The step is the one at which it happens."""
    sd = pipelines("sd15")
    unet = sd.components.unet
    calls = []

    class Breaking:
        config = unet.config

        def __call__(self, *given):
            out = unet(*given)
            calls.append(1)
            if len(calls) == 3:
                out.array[0, 0, 0, 0] = np.inf
            return out

    broken = StableDiffusion(
        sd.path, dataclasses.replace(sd.components, unet=Breaking()), sd.device, sd.dtype
    )
    with pytest.raises(ModelError, match=r"step 3 of 5 \(timestep 49\d(\.\d+)?\): the UNet"):
        broken.generate(params(steps=5))


def test_nan_image(changed):
    """A VAE whose numbers run away gives no image."""
    sd = StableDiffusion.load(changed("vae", "decoder.conv_out.bias", np.inf))
    with pytest.raises(ModelError, match="the VAE decoded to values that are not finite"):
        sd.generate(params())


def test_other_unets(complete, pipelines):
    """A UNet that takes what no task gives is refused when the model is loaded."""
    sd = pipelines("sd15")

    class Strange:
        config = dataclasses.replace(sd.components.unet.config, in_channels=8)

    with pytest.raises(UnsupportedModelError, match=r"takes 8 channels; supported: 4 .*, 9 "):
        StableDiffusion(
            sd.path, dataclasses.replace(sd.components, unet=Strange()), sd.device, sd.dtype
        )
