"""What the tests of the kernels share: the code objects of this checkout, if it has any."""

from __future__ import annotations

import os

import pytest

from propolis import Runtime
from propolis.config import Config
from propolis.errors import DeviceNotFoundError
from propolis.runtime import default_runtime
from propolis.runtime import set_default_runtime
from propolis_rocm_kernels import _code
from propolis_rocm_kernels.plugin import FAMILIES


@pytest.fixture(scope="session")
def manifest():
    """The manifest of the code objects; CI must have them, a developer without clang need not."""
    found = _code.manifest()
    if not found:
        missing = "no code objects: `make kernels` builds them"
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="session")
def signatures():
    """Every declared kernel's signature, by module and name."""
    return {family.MODULE.name: family.MODULE.signatures for family in FAMILIES}


@pytest.fixture(scope="session")
def runtime():
    """A runtime that refuses to let the CPU do what the device does not."""
    return Runtime.start(Config(fallback="error"))


@pytest.fixture
def rocm(runtime):
    """
    A device that kernels run on: a GPU, or the simulator's where ROCM_PATH names it.

    PROPOLIS_REQUIRE_ROCM=1 says that there must be one.
    """
    try:
        device = runtime.device("rocm")
    except DeviceNotFoundError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_ROCM") == "1":
            raise
        pytest.skip(f"{exc}; `make hipsim` builds a simulator, for ROCM_PATH=build/hipsim/host")
    before = default_runtime()
    set_default_runtime(runtime)
    yield device
    set_default_runtime(before)
