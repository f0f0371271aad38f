"""The models on a device with memory of its own, where every op falls back to the CPU."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import default_runtime
from propolis.dispatch import DispatchTable
from propolis.dispatch import FallbackLog
from propolis.dispatch.call import Handler
from propolis.dispatch.temporaries import Temporaries
from propolis.errors import OutOfMemoryError
from propolis_conformance.testing import FakeDevice
from propolis_conformance.testing import assert_on
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import LoRA
from propolis_workers.sd import StableDiffusion
from propolis_workers.sd import predicting
from propolis_workers.sd.loading import load_components
from propolis_workers.sd.unet import AddedConditions


class WithGraphs(FakeDevice):
    """A device that makes one call of many."""

    def record(self, calls):
        """As graphs of hardware do."""
        return lambda: [call() for call in calls]


@pytest.fixture
def device():
    """A device that no plugin serves."""
    made = WithGraphs()
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
    params = {"prompt": "a", "steps": 3, "seed": 3, "batch": 2, "scheduler": "euler_ancestral"}
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


@pytest.fixture
def captured(monkeypatch, device):
    """The graphs that steps on the device were captured as: how often each was replayed."""
    graphs = []

    @contextmanager
    def noted(where):
        with capture(where) as graph:
            yield graph
        if where is not device:
            return  # the rehearsal's
        graphs.append(0)
        number, replay = len(graphs) - 1, graph.replay

        def counted():
            graphs[number] += 1
            replay()

        monkeypatch.setattr(graph, "replay", counted)

    monkeypatch.setattr(predicting, "capture", noted)
    return graphs


@pytest.mark.parametrize(("steps", "replays"), [(1, []), (2, []), (4, [3])])
def test_a_step_is_captured_once(complete, device, captured, steps, replays):
    """The others replay it; of two nothing is: one replay saves less than a capture takes."""
    sd = StableDiffusion.load(complete("sd15"), device=device)
    drawn = sd.generate(GenerateParams(prompt="a", steps=steps, seed=3))
    assert len(drawn) == 1
    assert captured == replays


def test_a_step_that_somebody_looks_at_is_not_captured(complete, device, captured):
    """Handlers see every call of every step."""
    sd = StableDiffusion.load(complete("sd15"), device=device)
    seen = Counter()

    class Counting(Handler):
        def run(self, call, proceed):
            seen[call.spec.name] += 1
            proceed()

    with device.table.intercept(Counting()):
        sd.generate(GenerateParams(prompt="a", steps=3, seed=3))
    assert captured == []
    assert seen["conv2d"] >= 3 * len(
        [n for n in sd.components.modules if "unet" in n and "conv" in n]
    )


def test_memory_that_is_too_little_for_a_graph(complete, device, captured, monkeypatch):
    """The steps are taken one by one then, and draw the same."""
    sd = StableDiffusion.load(complete("sd15"), device=device)
    params = GenerateParams(prompt="a", steps=3, seed=3)
    drawn = sd.generate(params)

    def short(*_):
        raise OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Temporaries, "settle", short)
        again = sd.generate(params)
    assert captured == [2]
    np.testing.assert_array_equal(drawn[0], again[0])


@pytest.mark.slow
def test_memory_of_steps_comes_back(complete, device):
    """A captured step keeps nothing once the image is drawn, without the garbage collector."""
    sd = StableDiffusion.load(complete("sd15"), device=device)
    sd.generate(GenerateParams(prompt="a", steps=3, seed=1))
    gc.collect()
    before = len(device.memory.live)
    gc.disable()
    try:
        sd.generate(GenerateParams(prompt="a", steps=3, seed=2))
        assert len(device.memory.live) == before
    finally:
        gc.enable()


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
