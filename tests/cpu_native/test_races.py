"""The thread pool: by the compiler's thread sanitizer, and how many helpers it takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from patience import patience


ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "plugins" / "cpu_native" / "native"
CXX = os.environ.get("CXX", "c++")

pytestmark = pytest.mark.slow


def run(*command, **variables):
    """A command that must succeed; what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=patience(400),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    return done.stdout


def test_the_pool_has_no_races(tmp_path):
    """
    Callers in three threads, calls within tasks, tasks without memory: nothing is found.

    Who lacks memory in a task is told so by the call, whichever thread it was in.
    """
    program = tmp_path / "race"
    flags = ("-std=c++20", "-O1", "-g", "-fsanitize=thread", "-I", NATIVE, "-pthread")
    run(CXX, *flags, Path(__file__).with_name("race.cpp"), NATIVE / "pool.cpp", "-o", program)
    # Its shadow memory does not fit how some kernels lay out addresses at random.
    fixed = (shutil.which("setarch"), "-R") if shutil.which("setarch") else ()
    assert run(*fixed, program) == "0 wrong\n"


def test_helpers_beside_other_programs(tmp_path):
    """Those that cost more time than they save stay away, and come back when they pay."""
    program = tmp_path / "crowd"
    flags = ("-std=c++20", "-O1", "-I", NATIVE)
    run(CXX, *flags, Path(__file__).with_name("crowd.cpp"), "-o", program)
    assert run(program) == "right\n"
