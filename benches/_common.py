"""What benches share: rounds of child processes, one contender after the other."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path


def child(script: str, *arguments: str) -> dict[str, float]:
    """
    Run ``script`` as a child process and read the JSON object it prints last.

    OPENBLAS_CORETYPE is unset for every contender: it pins numpy's BLAS to another
    processor's kernels.
    """
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over the rounds."""
    return {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
