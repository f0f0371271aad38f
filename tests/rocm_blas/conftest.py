"""What the tests of the rocBLAS plugin share: the simulator's GPU, whose tree has a rocBLAS too."""

from __future__ import annotations

import ctypes

import pytest
import vendor

from propolis_rocm_blas import _ffi


@pytest.fixture(scope="session")
def environ(hipsim, tmp_path_factory):
    """The environment of processes that see the simulator alone, and keep what they find here."""
    return vendor.environment(hipsim, tmp_path_factory.mktemp("home"), "rocm_hip,rocm_blas")


@pytest.fixture
def python(environ, tmp_path):
    """Run Python with the simulated GPU: ``python(*arguments, NAME=value)``; gives the process."""
    return vendor.runner(environ, tmp_path)


@pytest.fixture
def propolis(python):
    """Run a command line with the simulated GPU; gives the finished process."""

    def run(*arguments, **variables):
        return python("-c", "from propolis.cli import main; main()", *arguments, **variables)

    return run


@pytest.fixture(scope="session")
def opened(environ):
    """A runtime of this process whose only plugins are HIP's, rocBLAS's and the reference."""
    return vendor.opened(environ)


@pytest.fixture
def runtime(opened, environ, monkeypatch):
    """The same, in its environment."""
    vendor.settle(environ, monkeypatch)
    return opened


@pytest.fixture
def rocm(runtime):
    """The simulated GPU, on which nobody but rocBLAS may serve anything."""
    device = runtime.device("rocm")
    with vendor.default(runtime):
        yield device


@pytest.fixture
def simulator(rocm):
    """The simulated library itself, for what tests ask of it; faults end with the test."""
    library = ctypes.CDLL(str(_ffi.library().path))
    library.hipsim_rocblas_count.restype = ctypes.c_longlong
    yield library
    for fault in (b"gemm", b"workspace"):
        library.hipsim_rocblas_inject(fault, b"0")
