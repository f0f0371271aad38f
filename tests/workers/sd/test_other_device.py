"""The models on a device with memory of its own, where every op falls back to the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import default_runtime
from propolis.dispatch import DispatchTable
from propolis.dispatch import FallbackLog
from propolis_conformance.testing import FakeDevice
from propolis_conformance.testing import assert_on
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import LoRA
from propolis_workers.sd import StableDiffusion
from propolis_workers.sd.loading import load_components
from propolis_workers.sd.unet import AddedConditions


@pytest.fixture
def device():
    """A device that no plugin serves."""
    made = FakeDevice()
    made.table = DispatchTable(made, (), default_runtime().cpu, FallbackLog("allow"))
    return made


@pytest.mark.parametrize("family", ["sd15", "sdxl"])
def test_same_as_on_the_cpu(models, folders, golden, device, family):
    """Nothing is left behind on the CPU, and the results are the CPU's to the bit."""
    here, there = models(family), load_components(folders(family), device)
    for layer in there.modules.values():
        assert_on(layer.weight, device)

    def run(components, at):
        def tensor(key):
            return Tensor.from_numpy(golden[f"{family}.{key}"], at)

        given = ("sample", "timestep", "context")
        added = {"text_embeds", "time_ids"} if family == "sdxl" else set()
        conditions = AddedConditions(**{key: tensor(f"unet.{key}") for key in added})
        yield components.unet(*(tensor(f"unet.{key}") for key in given), conditions)
        yield components.text_encoders[0](tensor("text_encoder.ids")).pooled
        image = Tensor.from_numpy(golden["sd15.vae.image"], at)
        yield components.vae.encode(image).logvar
        latents = Tensor.from_numpy(golden["sd15.vae.latents"], at)
        yield components.vae.decode(latents, tiled="always")

    pairs = zip(run(here, default_runtime().cpu), run(there, device), strict=True)
    for expected, actual in pairs:
        assert_on(actual, device)
        np.testing.assert_array_equal(expected.numpy(), actual.numpy())


@pytest.mark.parametrize(
    ("family", "task"),
    [("sd15", "inpaint"), ("inpaint", "inpaint"), ("sdxl", "img2img"), ("lcm", "txt2img")],
)
def test_drawing_is_the_same(pipelines, complete, runs, device, family, task):
    """Each task draws the CPU's bytes, by seeds, with a preview after each step."""
    params = {"prompt": "a", "steps": 2, "seed": 3, "batch": 2, "scheduler": "euler_ancestral"}
    if task != "txt2img":
        params["image"] = runs.picture()
    if task == "inpaint":
        params["mask"] = runs.mask()
    there = StableDiffusion.load(complete(family), device=device)
    drawn = []
    for sd in (pipelines(family), there):
        previews = []
        images = sd.generate(
            GenerateParams(**params),
            progress=lambda *step, previews=previews: previews.append(step[-1]()),
        )
        drawn.append((*images, *previews, images.latents))
    for expected, actual in zip(*drawn, strict=True):
        np.testing.assert_array_equal(expected, actual)


def test_lora(complete, device, make, monkeypatch, tmp_path):
    """A LoRA changes weights where they are."""
    monkeypatch.chdir(tmp_path)
    here, there = (StableDiffusion.load(complete("sd15"), device=d) for d in (None, device))
    lora = LoRA.open(make.lora())
    name = "unet.mid_block.resnets.0.conv1"
    own = there.components.modules[name].weight
    for sd in (here, there):
        sd.apply_lora(lora, 0.5)
    changed = there.components.modules[name].weight
    assert_on(changed, device)
    np.testing.assert_array_equal(here.components.modules[name].weight.numpy(), changed.numpy())
    there.remove_lora(lora)
    assert own is there.components.modules[name].weight
