"""Fixtures of several folders: plugins that are installed, a command line, a device."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import structlog
from patience import patience

from propolis import Device
from propolis import DeviceProperties
from propolis import OpImpl
from propolis import ProbeResult
from propolis import Provenance
from propolis import runtime as runtimes
from propolis.cli import main
from propolis.config import Config
from propolis.dispatch import DispatchTable
from propolis.dispatch import FallbackLog
from propolis.runtime import Runtime
from propolis_conformance.testing import FakeMemory
from propolis_conformance.testing import device_view


@pytest.fixture(autouse=True)
def private_settings(tmp_path, monkeypatch):
    """No test reads, or writes, what belongs to the person who runs it."""
    for name in list(os.environ):
        if name.startswith("PROPOLIS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    monkeypatch.setattr(runtimes, "_default", None)
    yield
    structlog.reset_defaults()


@pytest.fixture
def runtime():
    """A runtime with the CPU reference and the settings' defaults."""
    return Runtime.start(Config.load())


@pytest.fixture
def cpu(runtime):
    """Its CPU."""
    return runtime.cpu


if TYPE_CHECKING:
    from pathlib import Path


# -- installed plugins ---------------------------------------------------------

HEADER = """
from propolis import (CheckResult, Device, DeviceProperties, DoctorCheck, OpImpl, PluginInfo,
                      ProbeResult, dtypes, hookimpl)
"""


class Site:
    """A folder of installed distributions: modules beside their dist-info."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, source: str) -> None:
        """Write a module."""
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def distribution(self, name: str, version: str = "1.0", metadata: str | None = None, **groups):
        """Write a dist-info folder; ``groups`` maps entry-point groups to {name: value}."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        if metadata is None:
            (info / "METADATA").write_text(text)
        elif metadata:
            (info / "METADATA").write_text(metadata)
        (info / "RECORD").write_text(f"{name},,\n")
        lines = []
        for group, entries in groups.items():
            lines.append(f"[propolis.{group}]")
            lines += [f"{entry} = {value}" for entry, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def plugin(self, name: str, source: str = "", *, api: object = 1, info: bool = True, dist=""):
        """Install a plugin whose module holds ``source`` below a propolis_plugin()."""
        module = f"fake_{name.replace('-', '_')}"
        head = HEADER
        if info:
            head += (
                "@hookimpl\ndef propolis_plugin():\n"
                f"    return PluginInfo({name!r}, api={api!r}, description='a fake')\n"
            )
        self.module(module, head + textwrap.dedent(source))
        self.distribution(dist or f"fake-{name}", plugins={name: module})


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty site folder on sys.path, for this process and its children."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    yield Site(folder)
    for file in folder.iterdir():
        sys.modules.pop(file.stem, None)


@pytest.fixture
def unvetted(monkeypatch):
    """Plugins that passed in the child: what this process makes of them is what is tested."""
    monkeypatch.setattr("propolis.plugins.loader.vet", lambda *_a, **_k: ProbeResult(ok=True))
    monkeypatch.setattr("propolis.plugins.loader.vet_together", lambda *_a, **_k: {})


# A plugin that serves add on the CPU before the reference does.
FAST_ADD = """
def add(out, a, b, /):
    out.array[...] = 2 * a.array + b.array
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="add", fn=add, dtypes={dtypes.f32}, priority=100, notes="wrong on purpose")
"""

# A plugin with a device of its own: host memory behind another kind.
TOY_DEVICE = """
from propolis.cpu import CpuMemory
class Provider:
    kind = "toy"
    def enumerate(self):
        yield DeviceProperties("toy", 0, "Toy One", arch="toy1", total_memory=2**30,
                               extra={"id": "fake", "sm": "4"})
    def open(self, index):
        return Device(list(self.enumerate())[index], CpuMemory())
@hookimpl
def propolis_devices(config):
    yield Provider()
"""


@pytest.fixture
def sources():
    """Sources of plugins that several tests install."""
    return SimpleNamespace(fast_add=FAST_ADD, toy_device=TOY_DEVICE)


# -- the command line ----------------------------------------------------------


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys):
    """Run ``propolis ARGS`` in this process."""

    def run(*args: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(args)
        captured = capsys.readouterr()
        return Outcome(exit_.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def python(tmp_path):
    """Run Python source in a process of its own."""

    def run(source: str, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", textwrap.dedent(source)]
        settings = {"capture_output": True, "text": True, "cwd": tmp_path, **options}
        return subprocess.run(command, check=False, timeout=patience(60), **settings)

    return run


# -- a device ------------------------------------------------------------------


def kernel(function):
    """Turn a function of numpy arrays into an implementation's, for any device."""

    def run(out, a, b, /):
        arrays = [device_view(t) for t in (out, a, b)]
        arrays[0][...] = function(*arrays[1:])

    return run


def copy_kernel(out, x, /):
    """The op ``copy`` on the fake device."""
    device_view(out)[...] = device_view(x)


def impl(op="add", fn=None, *, plugin="fake", **fields) -> OpImpl:
    """An implementation as a host would stamp it."""
    from propolis import dtypes

    fields = {"device": "fake", "dtypes": dtypes.PLAIN, **fields}
    source = Provenance(plugin, f"dist-{plugin}", "1.0")
    return OpImpl(op=op, fn=fn or kernel(np.add), provenance=source, **fields)


@pytest.fixture
def fakes(cpu):
    """Builders of fake devices and of implementations for them."""

    def device(*impls: OpImpl, policy="allow", index=0) -> Device:
        properties = DeviceProperties("fake", index, "Fake One", arch="fake1")
        made = Device(properties, FakeMemory())
        made.table = DispatchTable(made, impls, cpu, FallbackLog(policy))
        return made

    return SimpleNamespace(
        device=device,
        impl=impl,
        kernel=kernel,
        copy=impl("copy", copy_kernel),
        view=device_view,
        Memory=FakeMemory,
    )
