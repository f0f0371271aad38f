"""What the tests of the MIOpen plugin share: the simulator's GPU, whose tree has a MIOpen too."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import vendor

from propolis import Tensor
from propolis_rocm_miopen import _ffi
from propolis_rocm_miopen.handle import Handle


@pytest.fixture(scope="session")
def environ(hipsim, tmp_path_factory):
    """The environment of processes that see the simulator alone, and keep what they find here."""
    return vendor.environment(hipsim, tmp_path_factory.mktemp("home"), "rocm_hip,rocm_miopen")


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
    """A runtime of this process whose only plugins are HIP's, MIOpen's and the reference."""
    return vendor.opened(environ)


@pytest.fixture
def runtime(opened, environ, monkeypatch):
    """The same, in its environment."""
    vendor.settle(environ, monkeypatch)
    return opened


@pytest.fixture
def rocm(runtime):
    """The simulated GPU, on which nobody but MIOpen may serve anything."""
    device = runtime.device("rocm")
    with vendor.default(runtime):
        yield device


@pytest.fixture
def simulator(rocm):
    """The simulated library itself, for what tests ask of it; faults end with the test."""
    library = ctypes.CDLL(str(_ffi.library().path))
    library.hipsim_miopen_count.restype = ctypes.c_longlong
    yield library
    for fault in (b"convolution", b"pooling", b"compile", b"find"):
        library.hipsim_miopen_inject(fault, b"0")


@pytest.fixture
def handle(rocm):
    """A handle that nobody has asked for anything, on a shelf of its own."""
    return Handle(rocm)


@pytest.fixture
def on(rocm):
    """Random tensors on the GPU: ``on(dtype, *shape)``."""

    def make(dtype, *shape, seed=0):
        values = np.random.default_rng([seed, *shape]).normal(0, 0.5, shape)
        return Tensor.from_numpy(values.astype(dtype.numpy), rocm)

    return make
