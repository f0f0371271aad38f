"""The tiny model's files, and settings of nobody."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from tiny_model import Tiny

from propolis import ProbeResult
from propolis.cli import main
from propolis.dispatch.capture import Graph
from propolis_workers.llm import chunks
from propolis_workers.llm import rows


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """The tiny model's content and writers."""
    return Tiny()


@pytest.fixture(scope="session")
def tiny_gguf(tiny, tmp_path_factory) -> Path:
    """The tiny model as a GGUF file; not to be changed."""
    return tiny.gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_folder(tiny, tmp_path_factory) -> Path:
    """The tiny model as a safetensors folder; not to be changed."""
    return tiny.folder(tmp_path_factory.mktemp("tiny") / "folder")


@pytest.fixture(scope="session")
def llm(tiny_gguf):
    """The tiny model, loaded; sequences on it are independent of each other."""
    from propolis_workers.llm import LLM

    return LLM.load(tiny_gguf)


@pytest.fixture
def queue(monkeypatch):
    """The CPU as a device with a queue, whose reads have what was there; gives graphs replayed."""

    def later(tensor):
        found = tensor.numpy().copy()
        return lambda: found

    replays, replay = [], Graph.replay
    for module in (chunks, rows):
        monkeypatch.setattr(module, "numpy_later", later)
    monkeypatch.setattr(Graph, "is_one_launch", lambda _: True)
    monkeypatch.setattr(Graph, "replay", lambda graph: replays.append(graph) or replay(graph))
    return replays


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch, tmp_path_factory):
    """No test sees the settings of whoever runs it."""
    for name in os.environ:
        if name.startswith("PROPOLIS_") and not name.startswith("PROPOLIS_REQUIRE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))


NAN = """
import numpy as np
from propolis import OpImpl, PluginInfo, dtypes, hookimpl
def wrong(out, {parameters}):
    out.array[...] = np.nan
@hookimpl
def propolis_plugin():
    return PluginInfo("wrong", api=1, description="not a number")
@hookimpl
def propolis_ops(device):
    yield OpImpl(op={op!r}, fn=wrong, dtypes={{dtypes.f32}}, priority=100)
"""


@pytest.fixture
def propolis_with(tmp_path, monkeypatch, capsys):
    """
    Return a function that runs a command with a plugin whose op gives NaN: the error.

    ``propolis_with(op, parameters, *arguments)``; the parameters as the op has them.
    """
    site = tmp_path / "site"
    info = site / "wrong_dist-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-dist\nVersion: 1.0\n")
    (info / "RECORD").write_text("wrong_dist,,\n")
    (info / "entry_points.txt").write_text("[propolis.plugins]\nwrong = gives_nan\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr("propolis.plugins.loader.vet", lambda *_a, **_k: ProbeResult(ok=True))

    def run(op: str, parameters: str, *arguments: str) -> str:
        (site / "gives_nan.py").write_text(NAN.format(op=op, parameters=parameters))
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 2
        return capsys.readouterr().err

    yield run
    sys.modules.pop("gives_nan", None)
