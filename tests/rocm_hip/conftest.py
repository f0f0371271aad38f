"""What the tests of the HIP plugin share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import structlog
from patience import patience

from propolis import Config
from propolis import runtime as runtimes
from propolis.cli import main
from propolis_rocm_hip.device import RocmProvider
from propolis_rocm_hip.modules import ModuleSource


_ROCM_VARIABLES = ("PROPOLIS_", "HIPSIM_", "HSA_", "HIP_", "ROCR_", "ROCM_", "GPU_DEVICE", "CUDA_")


@pytest.fixture(autouse=True)
def private_settings(tmp_path, monkeypatch):
    """No test reads, or writes, what belongs to the person who runs it."""
    for name in list(os.environ):
        if name.startswith(_ROCM_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    monkeypatch.setattr(runtimes, "_default", None)
    yield
    structlog.reset_defaults()


@pytest.fixture
def python():
    """Run code in a process of its own: ``python(code, NAME=value)`` gives the finished process."""

    def run(code, *, timeout=120, **environ):
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=patience(timeout),
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


# -- the simulated GPU ----------------------------------------------------------------

SOURCE = """
extern "C" __global__ void scale(float* y, const float* x, long long n, float f) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * f;
}
struct Strided { long long shape[6]; long long strides[6]; int rank; int pad; };
extern "C" __global__ void gather(float* y, const float* x, Strided s, int column) {
    const long long i = threadIdx.x;
    if (i < s.shape[0]) y[i] = x[i * s.strides[0] + column * s.strides[1]];
}
extern "C" __global__ void warp(int* y) { *y = PROPOLIS_WARP * 1000 + FLAG; }
extern "C" __global__ void wild(float* y) { y[1 << 20] = 1.0f; }
extern "C" __global__ void nothing() {}
"""
SIGNATURES = {"scale": "PPqf", "gather": "PP12qiii", "warp": "P", "wild": "P", "nothing": ""}


@pytest.fixture(scope="session")
def kernels():
    """A module of small kernels."""
    flags = ("-O2", "-DFLAG=7")
    return ModuleSource("kernels", SIGNATURES, source=lambda: SOURCE, flags=flags)


@pytest.fixture
def simulator(hipsim, monkeypatch):
    """The simulator for this process and its children; gives its tree."""
    monkeypatch.setenv("ROCM_PATH", str(hipsim))
    return hipsim


@pytest.fixture(scope="session")
def opened(hipsim, tmp_path_factory):
    """The simulated GPU in this process; its kernels are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCM_PATH", str(hipsim))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # No longer: other folders' tests would find a GPU, or not, by who ran before them.
        return RocmProvider(Config.load()).open(0)


@pytest.fixture
def device(opened, simulator):
    """The same, as this test's processes see it too; what the test allocates it frees."""
    opened.synchronize()
    before = opened.pool.statistics().allocated
    yield opened
    opened.synchronize()
    assert opened.pool.statistics().allocated == before


# For tests in processes of their own: a device, and the kernels above.
PRELUDE = f"""
import sys
import numpy as np
from propolis import Config, Tensor, dtypes
from propolis.errors import *
from propolis_rocm_hip.device import RocmProvider
from propolis_rocm_hip.modules import ModuleSource
KERNELS = ModuleSource("kernels", {SIGNATURES!r}, source=lambda: {SOURCE!r},
                       flags=("-O2", "-DFLAG=7"))
provider = RocmProvider(Config.load())
device = provider.open(0)
def upload(array, where=device): return Tensor.from_numpy(np.asarray(array), where)
def kernel(name): return device.modules.function(KERNELS, name)
def failure(call, *args):
    try: call(*args)
    except PropolisError as exc: print(type(exc).__name__, exc, sep=": ")
    else: print("no error")
"""


@pytest.fixture
def simulate(python, simulator, opened, monkeypatch):
    """
    Run code on a simulator of its own: ``simulate(code, HIPSIM_WARP="64")`` gives its output.

    The code finds ``device``, ``upload(array)``, ``kernel(name)`` and ``failure(call, *args)``,
    which prints the error that a call raises.
    """

    def run(code, **environ):
        done = python(PRELUDE + textwrap.dedent(code), **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run
