"""The models' outputs against those of diffusers and transformers, from golden files."""

from __future__ import annotations

import numpy as np
import pytest

from propolis_workers.sd.unet import AddedConditions


UNETS = ["sd15", "sd21", "sdxl", "inpaint", "lcm"]


def close(actual, expected, limit=1e-5):
    """Each element is off by no more than a small share of the range of all."""
    assert expected.shape == actual.shape
    assert np.abs(actual.numpy() - expected).max() <= limit * np.ptp(expected)


@pytest.mark.parametrize(("family", "number"), [("sd15", 0), ("sd21", 0), ("sdxl", 0), ("sdxl", 1)])
def test_text_encoder(models, golden, on_cpu, family, number):
    """All three embeddings of two texts are those of transformers."""
    name = f"{family}.text_encoder" + ("_2" if number else "")
    features = models(family).text_encoders[number](on_cpu(golden[f"{name}.ids"]))
    for key in ("last", "penultimate", "pooled"):
        close(getattr(features, key), golden[f"{name}.{key}"])


@pytest.mark.parametrize("family", UNETS)
def test_unet(models, golden, on_cpu, family):
    """One step of a batch at two timesteps is that of diffusers."""
    given = {
        key.removeprefix(f"{family}.unet."): value
        for key, value in golden.items()
        if key.startswith(f"{family}.unet.")
    }
    expected = given.pop("output")
    sample, timestep, context = (on_cpu(given.pop(k)) for k in ("sample", "timestep", "context"))
    added = AddedConditions(**{key: on_cpu(value) for key, value in given.items()})
    close(models(family).unet(sample, timestep, context, added), expected)


def test_vae(models, golden, on_cpu):
    """Encoding and decoding, at once and in tiles, are those of diffusers."""
    vae = models("sd15").vae
    seen = vae.encode(on_cpu(golden["sd15.vae.image"]))
    close(seen.mean, golden["sd15.vae.mean"])
    close(seen.logvar, golden["sd15.vae.logvar"])
    z = on_cpu(golden["sd15.vae.latents"])
    close(vae.decode(z), golden["sd15.vae.decoded"])
    assert vae.tile == 0
    close(vae.decode(z, tiled="always"), golden["sd15.vae.tiled"])
    assert vae.tile == 8
