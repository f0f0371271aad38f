"""The training code, which is scripts beside each other, and the packaged model."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from propolis import Runtime
from propolis.config import Config
from propolis_workers.sd import StableDiffusion


ROOT = Path(__file__).parents[3]
TRAINING = ROOT / "models/tiny_sd/training"


@pytest.fixture(scope="session")
def training():
    """Return a function that imports a module of the training code; torch is for some alone."""
    sys.path.insert(0, str(TRAINING))
    before = set(sys.modules)
    yield importlib.import_module
    sys.path.remove(str(TRAINING))
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None) or ""
        if Path(origin).parent == TRAINING:  # names like `data` and `models` are anybody's
            del sys.modules[name]


@pytest.fixture(scope="session")
def readme_image():
    """The command that draws the image of the README."""
    path = ROOT / "tools/readme_image.py"
    spec = importlib.util.spec_from_file_location("readme_image", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def folder() -> Path:
    """The model, wherever the distribution was installed from."""
    import propolis_tiny_sd

    return propolis_tiny_sd.FOLDER


@pytest.fixture(scope="session")
def model() -> StableDiffusion:
    """The packaged model, found as for a user who names none."""
    return StableDiffusion.load(runtime=Runtime.start(Config.load(device="cpu", threads=1)))
