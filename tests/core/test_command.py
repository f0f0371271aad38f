"""The installed command until core is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import importlib_metadata
import pytest


# In numpy's place, which core imports first of all that takes long: whoever types Ctrl-C meanwhile.
INTERRUPTS = """
import os, signal, sys
os.kill(os.getpid(), signal.SIGINT)
sys.path.remove(os.path.dirname(__file__))
del sys.modules["numpy"]
import numpy
"""


@pytest.fixture
def interrupted(tmp_path):
    """Run a command, the way that its script does, which is interrupted while core is imported."""
    (entry,) = importlib_metadata.entry_points(group="console_scripts", name="propolis")
    (tmp_path / "numpy.py").write_text(INTERRUPTS)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    script = f"from {entry.module} import {entry.attr} as main; main()"

    def run(before=""):
        return subprocess.run(
            [
                "/bin/sh",
                "-c",
                f'{before} exec "$@"',
                "sh",
                sys.executable,
                "-c",
                script,
                "--version",
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
            # Whoever runs the tests may be ignoring it, as a shell's & does.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return run


def test_ctrl_c(interrupted):
    """It ends the command as it does later: one line, and the code of interrupted programs."""
    done = interrupted()
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_is_not_for_what_runs_behind(interrupted):
    """Where a shell has the command ignore it, it goes on."""
    done = interrupted("trap '' INT;")
    assert (done.returncode, done.stderr) == (0, "")
