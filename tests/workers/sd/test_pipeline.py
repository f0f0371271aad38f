"""What drawing gives; that the numbers are those of diffusers says test_runs."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from propolis import default_runtime
from propolis import dtypes
from propolis.errors import DeviceNotFoundError
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


def test_device(complete):
    """A device may be given open, or by its id."""
    cpu = default_runtime().cpu
    for given in ("cpu", cpu):
        assert StableDiffusion.load(complete("sd15"), device=given).device is cpu
    with pytest.raises(DeviceNotFoundError, match=r"no device 'rocm:0'; present: cpu"):
        StableDiffusion.load(complete("sd15"), device="rocm:0")


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
    told = "this was left out: "
    assert [note.split(told)[0] for note in images.notes] == ["of the prompt ", "of the negative "]
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
    assert [
        {"file": str(tmp_path / "some.safetensors"), "sha256": lora.sha256, "strength": 0.5}
    ] == (on.source["loras"])
    assert (on[0] != before[0]).mean() > 0.1
    sd.remove_lora(lora)
    after = sd.generate(params(seed=1))
    np.testing.assert_array_equal(after.latents, before.latents)
    assert [] == after.source["loras"]


def test_lora_is_as_if_it_were_in_the_weights(complete, tmp_path):
    """A LoRA on every layer draws what a model draws whose file has the changed weights."""
    sd = StableDiffusion.load(complete("sd15"))
    random = np.random.default_rng(1)
    tensors = {}
    for name, layer in sd.components.modules.items():
        if not name.startswith("vae."):
            rows, *columns = layer.weight.shape
            down = random.normal(0, 0.05, (1, *columns)).astype("f4")
            up = random.normal(0, 1, (rows, 1, *(1,) * (len(columns) - 1))).astype("f4")
            tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    save_file(tensors, tmp_path / "all.safetensors")
    sd.apply_lora(LoRA.open(tmp_path / "all.safetensors"))
    folder = shutil.copytree(complete("sd15"), tmp_path / "baked")
    for component in ("unet", "text_encoder"):
        (file,) = (folder / component).glob("*.safetensors")
        weights = load_file(file)
        for key in weights:
            layer = sd.components.modules.get(f"{component}.{key.removesuffix('.weight')}")
            if layer is not None and key.endswith(".weight"):
                weights[key] = layer.weight.numpy().reshape(weights[key].shape).copy()
        save_file(weights, file)
    ours, baked = (
        model.generate(params(seed=1)).latents for model in (sd, StableDiffusion.load(folder))
    )
    assert np.abs(ours - baked).max() <= 1e-5 * np.ptp(baked)
    plain = StableDiffusion.load(complete("sd15")).generate(params(seed=1)).latents
    assert np.abs(ours - plain).max() > 0.1 * np.ptp(baked)


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
