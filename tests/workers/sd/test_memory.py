"""What drawing takes in memory is known, and refused, before it is taken."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis.cpu import CpuMemory
from propolis.errors import OutOfMemoryError
from propolis.errors import UsageError
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import LoRA
from propolis_workers.sd import StableDiffusion


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets what is free from now on."""
    return lambda nbytes: monkeypatch.setattr(CpuMemory, "available", lambda _: nbytes)


@pytest.fixture(scope="module")
def rehearsal(complete):
    """The rehearsal of a tiny model."""
    return StableDiffusion.rehearsed(complete("sd15"))


def needed(rehearsal, params):
    """Bytes that drawing takes at most: in steps, or decoding one image."""
    params, _, _ = rehearsal.model.planned(params)
    scale = rehearsal.model.components.vae.config.scale
    latents = (1, 4, params.height // scale, params.width // scale)
    return max(rehearsal.steps(params), rehearsal.decoding(latents))


@pytest.mark.parametrize(
    ("width", "height", "batch"), [(128, 128, 1), (192, 128, 1), (256, 256, 1), (128, 128, 2)]
)
def test_drawing(pipelines, rehearsal, width, height, batch):
    """The estimate is that of what is allocated, within a factor of two, whatever the size."""
    params = GenerateParams(prompt="a", width=width, height=height, batch=batch, steps=2, seed=1)
    sd = pipelines("sd15")
    sd.device.memory = CpuMemory()  # nothing is pooled yet
    gc.collect()
    tracemalloc.start()
    try:
        sd.generate(params)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.5 < needed(rehearsal, params) / measured < 2


def test_weights(rehearsal, complete):
    """Weights take what their elements take, and those that a LoRA changes twice."""
    sources = [complete("sd15") / name for name in ("unet", "vae", "text_encoder")]
    stored = sum(file.stat().st_size for s in sources for file in s.glob("*.safetensors"))
    assert 0.9 * stored < rehearsal.weights < 1.1 * stored


def test_lora(complete, make, monkeypatch, tmp_path):
    """A LoRA is rehearsed too: it takes memory, and one of another model is refused."""
    monkeypatch.chdir(tmp_path)
    rehearsal = StableDiffusion.rehearsed(complete("sd15"))
    before = rehearsal.weights
    rehearsal.apply_lora(LoRA.open(make.lora()), 0.5)
    assert 32 * 32 * 3 * 3 * 4 == rehearsal.weights - before
    with pytest.raises(UsageError, match="is for another model"):
        rehearsal.apply_lora(LoRA.open(make.lora("wide.safetensors", 99)), 0.5)


def test_weights_that_do_not_fit(complete, free):
    """A model larger than what is free is refused before it is read."""
    free(1000)
    with pytest.raises(OutOfMemoryError, match=r"^sd15 needs \d.\d\d MB of memory, and 0.00 MB"):
        StableDiffusion.load(complete("sd15"))


def test_steps_that_do_not_fit(complete, free):
    """Of images that are too large nothing is begun: not their noise, not the image."""
    sd = StableDiffusion.load(complete("sd15"))
    free(1_000_000_000)
    large = {"prompt": "a", "width": 80_000, "height": 80_000, "seed": 1}
    picture = np.zeros((8, 8, 3), np.uint8)
    for task in ({}, {"image": picture}, {"image": picture, "mask": picture[..., 0]}):
        tracemalloc.start()
        with pytest.raises(OutOfMemoryError) as caught:
            sd.generate(GenerateParams(**large, **task))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10_000_000
        assert str(caught.value).startswith("drawing 1 of 80000x80000 pixels needs ")
        assert "and 1.00 GB are free on cpu: make smaller images" in str(caught.value)


def test_decoding_that_does_not_fit(complete, free):
    """What cannot be decoded at once is decoded in tiles that can, before it is tried."""
    sd = StableDiffusion.load(complete("sd15"))
    params = GenerateParams(prompt="a", width=256, height=256, steps=1, seed=1)
    rehearsal = StableDiffusion.rehearsed(complete("sd15"))
    whole = sd.generate(params, tiled="always")
    steps = rehearsal.steps(sd.planned(params)[0])
    assert rehearsal.decoding((1, 4, 32, 32)) > steps > rehearsal.decoding((1, 4, 8, 8))
    free(steps)
    with capture_logs() as logs:
        tiled = sd.generate(params)
    np.testing.assert_array_equal(whole[0], tiled[0])
    (event,) = (log for log in logs if log["event"] == "vae.tiled")
    assert event["reason"].startswith("decoding 256x256 pixels at once needs ")
    with pytest.raises(OutOfMemoryError, match="decoding 256x256 pixels at once needs"):
        sd.generate(params, tiled="never")


def test_command(propolis, monkeypatch, free):
    """The command line says both numbers in one line, before it reads any weight."""
    free(123_000_000)
    monkeypatch.delattr("propolis_workers.sd.pipeline.StableDiffusion.load")
    run = propolis("generate", "a", "-W", "80000", "-H", "80000")
    assert (3, "") == (run.code, run.out)
    (line,) = run.err.splitlines()
    assert line.startswith("error: sd15, drawing 1 of 80000x80000 pixels, needs ")
    assert "GB of memory, and 123.00 MB are free on cpu: make smaller images, or fewer at" in line
