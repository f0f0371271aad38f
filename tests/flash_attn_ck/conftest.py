"""What the tests of flash attention share: a simulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def propolis(hipsim, tmp_path_factory):
    """Run a command line, or Python where it begins with ``-c``, with a simulated Instinct GPU."""
    settings = tmp_path_factory.mktemp("settings")

    def run(*arguments, warp=64):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROPOLIS_", "HIPSIM_"))}
        program = () if arguments[0] == "-c" else ("-c", "from propolis.cli import main; main()")
        done = subprocess.run(
            [sys.executable, *program, *arguments],
            env={
                **kept,
                "ROCM_PATH": str(hipsim),
                "HIPSIM_WARP": str(warp),
                "XDG_CONFIG_HOME": str(settings),
                # Compiled once a checkout: the cache knows what it was compiled from.
                "XDG_CACHE_HOME": str(ROOT / "build" / "cache"),
            },
            capture_output=True,
            text=True,
            timeout=patience(300),
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    return run
