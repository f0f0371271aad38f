"""How long to wait for something: longer where, and while, the machine is slow."""

from __future__ import annotations

import functools
import subprocess
import sys
import time


# Of a quiet machine of two cores.
USUAL_START = 0.2


@functools.cache
def slowness() -> float:
    """How many times slower than usual Python starts and loads numpy here, now; at least 1."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return max(1.0, (time.monotonic() - started) / USUAL_START)


def patience(seconds: float) -> float:
    """
    A time limit for this machine.

    Args:
        seconds: what a quiet machine of two cores never needs.
    """
    return seconds * slowness()


def until(true, seconds: float = 20.0) -> None:
    """Wait for something to become true; fail where it does not."""
    end = time.monotonic() + patience(seconds)
    while not true():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.01)
