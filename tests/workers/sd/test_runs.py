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


DATA = Path(__file__).parents[2] / "data" / "sd"


SPEC = importlib.util.spec_from_file_location("sd_runs_of_cases", DATA / "runs.py")
runs = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = runs  # dataclasses look their module up
SPEC.loader.exec_module(runs)
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


def ours(sd, case):
    """What we draw."""
    params = GenerateParams(**runs.full(case))
    shape = sd._shape(sd.planned(params)[0])
    return sd.generate(params, noise=Given(case, shape))


def compare(images, latents, pixels):
    """Latents within 1e-4 of their range, pixels within one of 255."""
    assert images.latents.shape == latents.shape
    assert np.abs(images.latents - latents).max() <= 1e-4 * np.ptp(latents)
    assert np.array(images.pixels).shape == pixels.shape
    assert np.abs(np.array(images.pixels).astype(int) - pixels).max() <= 1


@pytest.mark.parametrize("case", CASES)
def test_golden(pipelines, case):
    """Latents and images of a run are the committed ones of diffusers."""
    with np.load(DATA / "runs.npz") as golden:
        latents, pixels = (golden[f"{case.name}.{what}"] for what in ("latents", "images"))
    compare(ours(pipelines(case.family), case), latents, pixels)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # theirs, of each other
@pytest.mark.parametrize("case", CASES)
def test_live(pipelines, complete, case, oracles):
    """Latents and images of a run are those that diffusers gives now."""
    latents, images = runs.run(case, complete(case.family))
    compare(ours(pipelines(case.family), case), latents, np.round(images * 255).astype(np.uint8))
