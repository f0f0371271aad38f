"""Tiny models of each family, and what diffusers' models gave with their weights."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from propolis import Tensor
from propolis import default_runtime
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
