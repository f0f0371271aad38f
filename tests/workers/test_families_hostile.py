"""Settings that make no sense end in one line that says so, for each architecture."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import write_folder
from tiny_families import write_gguf

from propolis import default_runtime
from propolis.errors import ModelError
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


ABSURD = (
    *(0, 1, -1, 3, 1 << 24, 1 << 40, 10**400, True, None, 0.0, -0.5, 1e300, math.nan, math.inf),
    *("", "x", [], [1], {}, {"rope_type": "yarn"}, ["full_attention"], ["x"] * 3),
)


def refusal(source) -> str:
    """Why the settings or the weights are refused; nothing where it is a model that loads."""
    try:
        found = read_config(source)
        if found.layers <= 8:
            build(source, found, default_runtime().cpu)
    except ModelError as error:
        return str(error)
    return ""


def judge(source, what: object) -> None:
    """A refusal is one line, and no screenful."""
    said = refusal(source)
    assert "\n" not in said, what
    assert len(said) < 2000, what


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_config(name, tmp_path):
    """Each key of a config.json at each absurd value, and without it."""
    truth = Truth.read(name)
    folder = SafetensorsFolder.open(write_folder(tmp_path / "m", truth))
    for key in [key for key in truth.config if key not in ("model_type", "architectures")]:
        for value in ABSURD:
            changed = truth.config | {key: value}
            source = SimpleNamespace(config=changed, tensors=folder.tensors, data=folder.data)
            judge(source, {key: value})
        without = {k: v for k, v in truth.config.items() if k != key}
        source = SimpleNamespace(config=without, tensors=folder.tensors, data=folder.data)
        judge(source, {key: "missing"})


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf])
def test_metadata(name, tmp_path):
    """Each key of a GGUF file's metadata likewise."""
    path = write_gguf(tmp_path / "m.gguf", FAMILIES[name], Truth.read(name))
    file = GGUFFile.open(path)
    plain = dict(file.metadata)
    for key in [key for key in plain if key != "general.architecture"]:
        for value in (*ABSURD, ...):
            file.metadata = plain | {key: value}
            if value is ...:
                file.metadata = {k: v for k, v in plain.items() if k != key}
            judge(file, (key, value))
