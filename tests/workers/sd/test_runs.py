"""Whole runs are those of diffusers' pipelines, given the same random numbers."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from propolis import Tensor
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import StableDiffusion


DATA = Path(__file__).parents[2] / "data" / "sd"


def load(name: str):
    """A module of the golden data's folder."""
    spec = importlib.util.spec_from_file_location(f"sd_data_{name}", DATA / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


runs = load("runs")
CASES = [pytest.param(case, id=re.sub(r"[ =.]+", "-", case.name)) for case in runs.cases()]


class Given:
    """The noise that diffusers was given, in place of what seeds give."""

    def __init__(self, case, shape):
        self.case, self.shape = case, shape

    def _draw(self, use):
        return runs.draw(self.case, use, self.shape)

    def initial(self):
        """What is begun with."""
        return Tensor.from_numpy(self._draw("initial"))

    def of_image(self):
        """Drawn once, as diffusers does, for the one image that there is."""
        return Tensor.from_numpy(np.repeat(self._draw("image")[:1], self.shape[0], 0))

    def of_masked_image(self):
        """As for the image."""
        return Tensor.from_numpy(np.repeat(self._draw("masked")[:1], self.shape[0], 0))

    def of_step(self, i):
        """What a step adds."""
        return Tensor.from_numpy(self._draw(f"step {i}"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that gives the pipeline of a family, and its folder."""
    made = {}

    def get(family):
        if family not in made:
            folder = runs.write_model(tmp_path_factory.mktemp(family), family)
            made[family] = StableDiffusion.load(folder), folder
        return made[family]

    return get


def ours(sd, case):
    """What we draw."""
    params = GenerateParams(**runs.full(case))
    shape = sd._shape(sd._planned(params)[0])
    return sd.generate(params, noise=Given(case, shape))


def compare(images, latents, pixels):
    """Latents within 1e-3 of their range, pixels within one of 255."""
    assert images.latents.shape == latents.shape
    assert np.abs(images.latents - latents).max() <= 1e-3 * np.ptp(latents)
    assert np.array(images.pixels).shape == pixels.shape
    assert np.abs(np.array(images.pixels).astype(int) - pixels).max() <= 1


@pytest.mark.parametrize("case", CASES)
def test_golden(models, case):
    """Latents and images of a run are the committed ones of diffusers."""
    with np.load(DATA / "runs.npz") as golden:
        latents, pixels = (golden[f"{case.name}.{what}"] for what in ("latents", "images"))
    compare(ours(models(case.family)[0], case), latents, pixels)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # theirs, of each other
@pytest.mark.parametrize("case", CASES)
def test_live(models, case, oracles):
    """Latents and images of a run are those that diffusers gives now."""
    sd, folder = models(case.family)
    latents, images = runs.run(case, folder)
    compare(ours(sd, case), latents, np.round(images * 255).astype(np.uint8))
