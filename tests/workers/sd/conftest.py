"""Tiny models of each family, and what diffusers' models gave with their weights."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from propolis import Tensor
from propolis import default_runtime
from propolis.cli import main
from propolis_workers.sd import StableDiffusion
from propolis_workers.sd.loading import load_components


DATA = Path(__file__).parents[2] / "data" / "sd"


@pytest.fixture(scope="session")
def families():
    """The module that describes the tiny models."""
    spec = importlib.util.spec_from_file_location("sd_families", DATA / "families.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def golden():
    """Inputs and outputs by name, as ``generate.py`` wrote them."""
    with np.load(DATA / "models.npz") as file:
        return dict(file)


@pytest.fixture(scope="session")
def folders(families, tmp_path_factory):
    """Return a function that gives a family's folder; not to be changed."""
    made = {}

    def folder(family: str) -> Path:
        if family not in made:
            path = tmp_path_factory.mktemp("sd") / family
            made[family] = families.write_folder(path, family)
        return made[family]

    return folder


@pytest.fixture(scope="session")
def models(folders):
    """Return a function that gives a family's components on the CPU, f32; not to be changed."""
    made = {}

    def load(family: str):
        if family not in made:
            made[family] = load_components(folders(family), default_runtime().cpu)
        return made[family]

    return load


@pytest.fixture(scope="session")
def on_cpu():
    """Return a function that makes tensors of arrays."""
    return lambda array: Tensor.from_numpy(np.ascontiguousarray(array), default_runtime().cpu)


@pytest.fixture(scope="session")
def runs():
    """The module that describes whole runs."""
    spec = importlib.util.spec_from_file_location("sd_runs", DATA / "runs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def complete(runs, tmp_path_factory):
    """Return a function that gives a family's folder with tokenizers; not to be changed."""
    made = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = runs.write_model(tmp_path_factory.mktemp("sd") / family, family)
        return made[family]

    return folder


@pytest.fixture(scope="session")
def pipelines(complete):
    """Return a function that gives a family's pipeline on the CPU, f32; not to be changed."""
    made = {}

    def load(family: str) -> StableDiffusion:
        if family not in made:
            made[family] = StableDiffusion.load(complete(family))
        return made[family]

    return load


class Run:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def propolis(monkeypatch, capsys, complete, tmp_path):
    """Return a function that runs a command in this process and in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROPOLIS_SD_MODEL", str(complete("sd15")))

    def run(*arguments: str, before: tuple[str, ...] = ()) -> Run:
        code = 0
        try:
            main([*before, "sd", *arguments])
        except SystemExit as exit_info:
            code = exit_info.code or 0
        return Run(code, *capsys.readouterr())

    return run


class Files:
    """Writes files that an image is drawn from into the current folder."""

    def picture(self, name="photo.png", size=(64, 64), **save):
        """Write an image to start from."""
        random = np.random.default_rng(1)
        Image.fromarray(random.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(name, **save)
        return name

    def mask(self, name="mask.png", size=(64, 64)):
        """Write a mask, white on the right."""
        pixels = np.zeros((size[1], size[0]), np.uint8)
        pixels[:, size[0] // 2 :] = 255
        Image.fromarray(pixels).save(name)
        return name

    def lora(self, name="some.safetensors", columns=32):
        """Write a LoRA for the tiny model's UNet."""
        layer = "lora_unet_mid_block_resnets_0_conv1"
        random = np.random.default_rng(0)
        tensors = {
            f"{layer}.lora_down.weight": random.normal(size=(2, columns, 3, 3)).astype("f4"),
            f"{layer}.lora_up.weight": random.normal(size=(32, 2, 1, 1)).astype("f4"),
        }
        save_file(tensors, name)
        return name


@pytest.fixture
def make():
    """Return what writes images, masks and LoRAs."""
    return Files()
