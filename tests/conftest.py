"""What tests of several distributions share: plugins they see, oracles, the simulated GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import importlib_metadata
import pytest
from selection import pytest_addoption
from selection import pytest_collection_modifyitems
from selection import pytest_terminal_summary
from selection import pytest_testnodedown

from propolis.plugins.discovery import identity


__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]


ROOT = Path(__file__).parents[1]

# Plugins that tests of core do not expect beside the CPU reference.
OURS = ("propolis-rocm", "propolis-flash")


@pytest.fixture(autouse=True)
def reference_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Of what is installed here, tests see the CPU reference alone.

    Those of ROCm plugins, and of the page that lists what all plugins declare, see all.
    """
    page = ("integration", "test_op_matrix.py")
    if (
        any(part.startswith(("rocm_", "flash_")) for part in request.path.parts)
        or request.path.parts[-2:] == page
    ):
        return
    real = importlib_metadata.entry_points

    def entry_points(**wanted: str) -> importlib_metadata.EntryPoints:
        kept = [e for e in real(**wanted) if not identity(e.dist)[0].startswith(OURS)]
        return importlib_metadata.EntryPoints(kept)

    monkeypatch.setattr(importlib_metadata, "entry_points", entry_points)


@pytest.fixture(scope="session")
def oracles():
    """Require torch, diffusers and transformers; without them tests are skipped, or fail."""
    for name in ("torch", "diffusers", "transformers"):
        if importlib.util.find_spec(name) is None:
            reason = f"{name} is not installed: `make oracles` installs it"
            if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
                pytest.fail(reason)
            pytest.skip(reason)


@pytest.fixture(scope="session")
def hipsim() -> Path:
    """
    The ROCm tree of the simulator, brought up to date by make.

    Processes use it when ``ROCM_PATH`` names it.
    """
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE"):
            pytest.fail("PROPOLIS_REQUIRE_NATIVE is set and there is no C++ compiler")
        pytest.skip("the simulator needs a C++ compiler")
    made = subprocess.run(
        ["make", "hipsim"],  # noqa: S607
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "MAKEFLAGS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "build" / "hipsim" / "host"
