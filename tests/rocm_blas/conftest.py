"""What the tests of the rocBLAS plugin share: the simulator's GPU, whose tree has a rocBLAS too."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
from patience import patience

from propolis import Config
from propolis import Runtime
from propolis.runtime import default_runtime
from propolis.runtime import set_default_runtime
from propolis_rocm_blas import _ffi


_FOREIGN = ("PROPOLIS_", "HIPSIM_", "HSA_", "HIP_", "ROCR_", "ROCM_", "ROCBLAS_", "XDG_")
PLUGINS = "rocm_hip,rocm_blas"


@pytest.fixture(scope="session")
def environ(hipsim, tmp_path_factory):
    """The environment of processes that see the simulator alone, and keep what they find here."""
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {
        **kept,
        "ROCM_PATH": str(hipsim),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "PROPOLIS_PLUGINS": PLUGINS,
    }


@pytest.fixture
def python(environ, tmp_path):
    """Run Python with the simulated GPU: ``python(*arguments, NAME=value)``; gives the process."""

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, *arguments],
            env={**environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )

    return run


@pytest.fixture
def propolis(python):
    """Run a command line with the simulated GPU; gives the finished process."""

    def run(*arguments, **variables):
        return python("-c", "from propolis.cli import main; main()", *arguments, **variables)

    return run


@pytest.fixture(scope="session")
def opened(environ):
    """A runtime of this process whose only plugins are HIP's, rocBLAS's and the reference."""
    with pytest.MonkeyPatch.context() as patch:
        _settle(environ, patch)
        runtime = Runtime.start(Config(fallback="error"))
        runtime.device("rocm")
    return runtime  # the environment is as it was: other folders' tests are to find no GPU


@pytest.fixture
def runtime(opened, environ, monkeypatch):
    """The same, in its environment."""
    _settle(environ, monkeypatch)
    return opened


def _settle(environ, patch):
    for name in list(os.environ):
        if name.startswith(_FOREIGN):
            patch.delenv(name)
    for name, value in environ.items():
        patch.setenv(name, value)


@pytest.fixture
def rocm(runtime):
    """The simulated GPU, on which nobody but rocBLAS may serve anything."""
    device = runtime.device("rocm")
    before = default_runtime()
    set_default_runtime(runtime)
    yield device
    set_default_runtime(before)


@pytest.fixture
def simulator(rocm):
    """The simulated library itself, for what tests ask of it; faults end with the test."""
    library = ctypes.CDLL(str(_ffi.library().path))
    library.hipsim_rocblas_count.restype = ctypes.c_longlong
    yield library
    for fault in (b"gemm", b"workspace"):
        library.hipsim_rocblas_inject(fault, b"0")
