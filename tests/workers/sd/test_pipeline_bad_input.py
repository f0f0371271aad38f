"""What cannot be drawn is refused, and what goes wrong while drawing is said."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from propolis import dtypes
from propolis.errors import ArgumentTypeError
from propolis.errors import ConfigError
from propolis.errors import ModelError
from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import LoRA
from propolis_workers.sd import StableDiffusion


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


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"width": 100}, UsageError, "width 100 is not a multiple of 8, 96 and 104 are: give one"),
        ({"height": 4}, UsageError, "height 4 is less than 8, the least: give a multiple of 8$"),
        ({"height": 0}, UsageError, "height 0 is less than 8, the least"),
        ({"width": -8}, UsageError, "width -8 is less than 8, the least"),
        ({"steps": 0}, UsageError, "steps is 0; scheduler euler takes 1 to 1000"),
        ({"steps": 1001}, UsageError, "steps is 1001; scheduler euler takes 1 to 1000"),
        ({"batch": 0}, UsageError, "batch is 0; supported: 1 to 1024"),
        ({"guidance": -1.0}, UsageError, "guidance is -1.0; it must be finite, 0 or greater"),
        ({"guidance": float("nan")}, UsageError, "guidance is nan"),
        ({"guidance": 1.0, "negative": "x"}, UsageError, "negative prompt has no effect at guid"),
        ({"seed": -2}, UsageError, r"seed -2 is not in \[0, 2\*\*64\), nor -1 for"),
        ({"seed": 2**64}, UsageError, r"is not in \[0, 2\*\*64\), nor -1"),
        ({"seed": 2**64 - 2, "batch": 3}, UsageError, "and those of the 2 images after"),
        (
            {"scheduler": "eular"},
            ConfigError,
            "no scheduler 'eular'; supported: ddim, .*mean euler",
        ),
        ({"sigmas": "karas"}, UsageError, "no sigmas 'karas'; supported: normal, karras, expon"),
        ({"spacing": "leadin"}, ConfigError, "timestep_spacing is 'leadin'; supported: leading"),
        ({"scheduler": "ddim", "sigmas": "karras"}, ConfigError, "ddim takes no sigmas karras"),
        ({"eta": 0.5}, ConfigError, "scheduler euler takes no eta; ddim does"),
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
        ({"negative": "\ud800"}, UsageError, "the negative prompt holds a lone surrogate"),
    ],
)
def test_bad_parameters(sd, changes, error, message, monkeypatch):
    """What cannot be drawn is refused before anything is computed: what was given, what can be."""
    monkeypatch.setattr(sd, "texts", lambda *_: pytest.fail("the text was encoded"))
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
        ("mask", np.eye(8, dtype=np.uint8), "the mask has no more than 1, .*: multiply it by 255"),
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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prompt", None, "prompt is None; supported: a text, '' for none: each of several is"),
        ("prompt", ["a"], r"prompt is \['a'\]; supported: a text, .*: each .* a call of its own"),
        ("prompt", ("a", "b"), r"prompt is \('a', 'b'\); supported: a text.* batch=N draws N im"),
        ("negative", ["a"], r"negative is \['a'\]; supported: a text or None: each of several"),
        ("negative", 1, "negative is 1; supported: a text or None"),
        ("width", "64", "width is '64'; supported: a whole number or None"),
        ("height", 64.0, "height is 64.0; supported: a whole number or None"),
        ("steps", 2.5, "steps is 2.5; supported: a whole number"),
        ("steps", None, "steps is None; supported: a whole number"),
        ("seed", "7", "seed is '7'; supported: a whole number or None"),
        ("batch", True, "batch is True; supported: a whole number"),
        ("batch", 2.0, "batch is 2.0; supported: a whole number"),
        ("guidance", "7.5", "guidance is '7.5'; supported: a number"),
        ("strength", "0.5", "strength is '0.5'; supported: a number or None"),
        ("eta", "0", "eta is '0'; supported: a number or None"),
        ("scheduler", 3, "scheduler is 3; supported: a text or None"),
        ("sigmas", ["karras"], r"sigmas is \['karras'\]; supported: a text or None"),
        ("spacing", 1, "spacing is 1; supported: a text or None"),
        ("image", "a.png", "image is 'a.png'; supported: a numpy array or None"),
        ("mask", [[0, 255]], r"mask is \[\[0, 255\]\]; supported: a numpy array"),
        ("prompt", b"x" * 999, r"prompt is b'x+\.\.\.; supported: a text"),
    ],
)
def test_wrong_types(name, value, message):
    """A parameter of another type is refused at once, by name."""
    with pytest.raises(TypeError, match=message) as caught:
        params(**{name: value})
    assert isinstance(caught.value, UsageError)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy(sd):
    """Whole numbers and floats of numpy are taken as Python's, and can be written to a file."""
    given = params(seed=np.uint64(2**63), steps=np.int32(1), guidance=np.float32(2.5))
    assert [int, int, float] == [type(v) for v in (given.seed, given.steps, given.guidance)]
    assert 2.5 == json.loads(json.dumps(sd.generate(given).metadata()))["guidance"]


@pytest.mark.parametrize("value", ["a red circle", {"prompt": "a"}, None, ["a", "b"], [params()]])
def test_no_parameters(sd, value):
    """What is no GenerateParams is refused, with how to make one."""
    with pytest.raises(TypeError, match=r"params is .*; supported: GenerateParams\(prom"):
        sd.generate(value)


@pytest.mark.parametrize(
    ("name", "hint"), [("a.jpg", "a.png"), ("a", "a.png"), ("a.tar.webp", "a.tar.png")]
)
def test_other_formats(sd, tmp_path, name, hint):
    """Images are written as PNG alone: other names are refused, and nothing is written."""
    drawn = sd.generate(params())
    with pytest.raises(UsageError, match=f"{name}: images are written as PNG, .*give .*{hint}$"):
        drawn.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert [tmp_path / "a.PNG"] == drawn.save(tmp_path / "a.PNG")


def test_inpainting_models(pipelines, runs):
    """A UNet that paints into images needs one, and a mask."""
    for given in ({}, {"image": runs.picture()}):
        with pytest.raises(
            UsageError, match="inpaint paints into images: give an image and a mask"
        ):
            pipelines("inpaint").generate(params(**given))


def test_a_word_for_tiles_that_does_not_exist(sd, monkeypatch):
    """It is refused before anything is computed, and does not mean "auto"."""
    monkeypatch.setattr(sd, "texts", lambda *_: pytest.fail("the text was encoded"))
    with pytest.raises(UsageError, match="tiled is 'some'; supported: auto, never, always"):
        sd.generate(params(), tiled="some")


def test_nan_latents(changed):
    """Latents that are no longer finite stop the run, which names the step and who gave them."""
    sd = StableDiffusion.load(changed("unet", "conv_out.bias", np.nan))
    seen = []
    with pytest.raises(ModelError, match=r"step 1 of 3 \(timestep 999\): the UNet gave values"):
        sd.generate(params(steps=3), progress=lambda *step: seen.append(step))
    assert not seen


@pytest.mark.parametrize(
    ("of", "name", "family"),
    [
        ("text_encoder", "text_model.final_layer_norm.bias", "sd15"),
        ("text_encoder_2", "text_projection.weight", "sdxl"),
    ],
)
def test_nan_of_the_text(changed, of, name, family):
    """Where the text encoder gave what is not finite, it is named, and not the UNet."""
    sd = StableDiffusion.load(changed(of, name, np.nan, family))
    with pytest.raises(ModelError, match=r"step 1 of 3 .*: the text encoder gave values"):
        sd.generate(params(steps=3))


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


@pytest.mark.parametrize("kind", [OutOfMemoryError, MemoryError])
def test_out_of_memory(pipelines, kind):
    """Where memory is short, the message says for what, and what helps."""
    sd = pipelines("sd15")

    class Large:
        config = sd.components.unet.config

        def __call__(self, *given):
            msg = "no more"
            raise kind(msg)

    large = StableDiffusion(
        sd.path, dataclasses.replace(sd.components, unet=Large()), sd.device, sd.dtype
    )
    with pytest.raises(OutOfMemoryError, match="draw 2 of 64x64 pixels: no more; make smaller"):
        large.generate(params(batch=2))


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


def test_a_negative_prompt_of_a_model_that_is_told_the_guidance(pipelines):
    """It would have no effect at any guidance, and is refused instead of passed over."""
    params = GenerateParams(prompt="a", negative="b", guidance=7.5, steps=1)
    with pytest.raises(UsageError, match="no effect with lcm, which is told the guidance: leave"):
        pipelines("lcm").generate(params)


def test_what_is_no_lora(sd):
    """A path, which the command line takes, and a strength that is no number are named."""
    with pytest.raises(ArgumentTypeError, match=r"lora is 'x\.safetensors'; supported: a LoRA, as"):
        sd.apply_lora("x.safetensors", 1.0)
    with pytest.raises(ArgumentTypeError, match="strength is '1'; supported: a number"):
        sd.apply_lora(LoRA("x", "", ()), "1")


def test_dtypes_of_models(complete):
    """By name too, as language models take them; others are refused before weights are read."""
    folder = complete("sd15")
    assert StableDiffusion.load(folder, dtype="f16").dtype is dtypes.f16
    for wrong, why in ((dtypes.i8, "a model in i8; supported: f32, f16, bf16"), ("f17", "f16")):
        with pytest.raises(PropolisError, match=why):
            StableDiffusion.load(folder, dtype=wrong)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("unet/config.json", "{}", "config.json: it has no settings; get the whole model again"),
        ("scheduler/scheduler_config.json", None, "there is no such file; get the whole model"),
    ],
)
def test_settings_that_are_not_there(complete, tmp_path, file, content, message):
    """Told once, with what to do."""
    folder = shutil.copytree(complete("sd15"), tmp_path / "m")
    path = folder / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ModelError, match=message):
        StableDiffusion.load(folder)


@pytest.mark.parametrize("wrong", [5, "", b"a"], ids=str)
def test_what_is_no_path(sd, wrong):
    """Is named, with what is supported: a model's, a LoRA's and a picture's."""
    images = sd.generate(params())
    for call in (StableDiffusion.load, LoRA.open, images.save):
        with pytest.raises(ArgumentTypeError, match=r"path is .*; supported: a path, as str or"):
            call(wrong)
    with pytest.raises(ArgumentTypeError, match="supported: a LoRA, as"):
        sd.remove_lora(wrong)
