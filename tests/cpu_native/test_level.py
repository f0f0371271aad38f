"""Which of the kernels' levels is taken where the environment names one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from patience import patience

from propolis_cpu_native._native import LEVEL
from propolis_cpu_native._native import level


def test_the_one_that_is_named(monkeypatch):
    """It is taken as it is."""
    own = level()
    monkeypatch.setenv(LEVEL, own)
    assert level() == own


@pytest.mark.slow
def test_one_that_is_none():
    """A slip of whoever named it is a warning, and an error to the doctor; the rest runs."""
    environ = {**os.environ, LEVEL: "x86_64_v9"}
    for command, told in (("doctor", "ERROR   plugin.cpu_native"), ("explain", "plugin.rejected")):
        arguments = (command, *(("add",) if command == "explain" else ()))
        done = subprocess.run(
            [sys.executable, "-m", "propolis", *arguments],
            env=environ,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )
        assert told in done.stdout + done.stderr
        assert f"{LEVEL}=x86_64_v9: there is no such level; here there are " in (
            done.stdout + done.stderr
        )
