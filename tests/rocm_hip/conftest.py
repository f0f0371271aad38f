"""What the tests of the HIP plugin share."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import structlog

from propolis.cli import main
from propolis.runtime import set_default_runtime


_ROCM_VARIABLES = ("PROPOLIS_", "HIPSIM_", "HSA_", "HIP_", "ROCR_", "ROCM_", "GPU_DEVICE")


@pytest.fixture(autouse=True)
def private_settings(tmp_path, monkeypatch):
    """No test reads, or writes, what belongs to the person who runs it."""
    for name in list(os.environ):
        if name.startswith(_ROCM_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    yield
    structlog.reset_defaults()
    set_default_runtime(None)


@pytest.fixture
def python():
    """Run code in a process of its own: ``python(code, NAME=value)`` gives the finished process."""

    def run(code, *, timeout=120, **environ):
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def cli(capsys):
    """Run a command line in this process: ``cli("cache", "ls")`` gives (exit code, out, err)."""

    def run(*args):
        with pytest.raises(SystemExit) as caught:
            main(list(args))
        out, err = capsys.readouterr()
        return caught.value.code or 0, out, err

    return run
