"""
What the tests of plugins for vendors' libraries share: the simulator's GPU, in an environment of
its own, which neither this user's settings nor what other tests find can reach.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest
from patience import patience

from propolis import Config
from propolis import Runtime
from propolis import runtime as runtimes


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

_FOREIGN = (
    *("PROPOLIS_", "HIPSIM_", "HSA_", "HIP_", "ROCR_", "ROCM_", "XDG_"),
    *("ROCBLAS_", "HIPBLASLT_", "TENSILE_", "MIOPEN_"),
)


def environment(hipsim: Path, home: Path, plugins: str) -> dict[str, str]:
    """The environment of processes that see the simulator alone, and keep what they find here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {
        **kept,
        "ROCM_PATH": str(hipsim),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "MIOPEN_CUSTOM_CACHE_DIR": str(home / "miopen"),
        "PROPOLIS_PLUGINS": plugins,
    }


def told(hipsim: Path, home: Path, code: str, *arguments: object, **environ: str) -> Any:
    """What a process with the simulator's GPU and our kernels prints last, which is JSON."""
    # Kernels are compiled once a checkout.
    cache = str(Path(__file__).parents[2] / "build" / "cache")
    own = {"XDG_CACHE_HOME": cache, "PROPOLIS_FALLBACK": "allow", **environ}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**environment(hipsim, home, "rocm_hip,rocm_kernels"), **own},
        capture_output=True,
        text=True,
        timeout=patience(600),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def settle(environ: dict[str, str], patch: pytest.MonkeyPatch) -> None:
    """Give this process that environment."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN):
            patch.delenv(name)
    for name, value in environ.items():
        patch.setenv(name, value)


def opened(environ: dict[str, str]) -> Runtime:
    """A runtime of this process whose only plugins are the environment's and the reference."""
    with pytest.MonkeyPatch.context() as patch:
        settle(environ, patch)
        runtime = Runtime.start(Config(fallback="error"))
        runtime.device("rocm")
    return runtime  # the environment is as it was: other folders' tests are to find no GPU


@contextmanager
def default(runtime: Runtime) -> Iterator[None]:
    """While the body runs, tensors without a device belong to that runtime."""
    before = runtimes._default  # asking for it would make one, which sees this environment
    runtimes.set_default_runtime(runtime)
    try:
        yield
    finally:
        runtimes.set_default_runtime(before)


def runner(environ: dict[str, str], folder: Path) -> Callable[..., Any]:
    """Run Python with the simulated GPU: ``run(*arguments, NAME=value)``; gives the process."""

    def run(*arguments: str, **variables: str) -> Any:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**environ, **variables},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )

    return run


__all__ = ["default", "environment", "opened", "runner", "settle"]
