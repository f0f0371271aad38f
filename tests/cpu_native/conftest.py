"""What the tests of the CPU kernels share: the plugin, and command lines that have it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from patience import patience

from propolis import Config
from propolis import Runtime
from propolis import runtime as runtimes
from propolis.errors import PluginError
from propolis_cpu_native._native import native


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def kernels():
    """The compiled kernels; without a compiler there are none, and the tests are skipped."""
    try:
        return native()
    except PluginError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE"):
            pytest.fail(f"PROPOLIS_REQUIRE_NATIVE is set, and {exc}")
        pytest.skip(str(exc))


@cache
def _started() -> Runtime:
    """As the settings have it before a test changes them; each start takes a third of a second."""
    return Runtime.start(Config.load())


@pytest.fixture(autouse=True)
def default_runtime(monkeypatch):
    """Tensors without a device are of a runtime of these tests' own: others see no kernels."""
    monkeypatch.setattr(runtimes, "_default", _started())


@pytest.fixture
def runtime():
    """Starts runtimes with both CPU plugins: ``runtime(numerics=...)``."""

    def start(**settings):
        return Runtime.start(Config(**{"plugins": ["cpu_native", "cpu_ref"], **settings}))

    return start


@pytest.fixture
def propolis(tmp_path):
    """Run a command line, or Python where it begins with ``-c``; gives the finished process."""

    def run(*arguments, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PROPOLIS_")}
        program = () if arguments[0] == "-c" else ("-c", "from propolis.cli import main; main()")
        own = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        return subprocess.run(
            [sys.executable, *program, *arguments],
            env={**kept, **own, **variables},
            capture_output=True,
            text=True,
            timeout=patience(300),
            check=False,
        )

    return run
