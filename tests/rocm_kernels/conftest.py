"""What the tests of the kernels share: the code objects of this checkout, if it has any."""

from __future__ import annotations

import os

import pytest

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
