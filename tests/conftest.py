"""What tests of several distributions share: plugins they see, oracles, the simulated GPU."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import importlib_metadata
import pytest
from selection import pytest_addoption
from selection import pytest_collection_modifyitems
from selection import pytest_itemcollected
from selection import pytest_runtest_protocol
from selection import pytest_sessionstart
from selection import pytest_terminal_summary
from selection import pytest_testnodedown

from propolis import runtime as runtimes
from propolis.plugins.discovery import identity


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis import Runtime

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_itemcollected",
    "pytest_runtest_protocol",
    "pytest_sessionstart",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]


ROOT = Path(__file__).parents[1]

# Plugins that tests of core do not expect beside the CPU reference.
OURS = ("propolis-rocm", "propolis-flash", "propolis-cpu-native")
# Without what sitecustomize.py hid, where pytest started this process.
ALL = getattr(importlib_metadata.entry_points, "everything", importlib_metadata.entry_points)
# What was on the path before any test; pytest adds folders of tests.
FIRST = frozenset(sys.path)


def _hide(*names: str) -> Callable[..., importlib_metadata.EntryPoints]:
    def entry_points(**wanted: str) -> importlib_metadata.EntryPoints:
        path = tuple(sys.path)
        # Where a test has folders of its own, their distributions come and go.
        here = all(one in FIRST or one.startswith(str(ROOT / "tests")) for one in path)
        found = _installed(path) if here else ALL()
        kept = [e for e in found.select(**wanted) if not identity(e.dist)[0].startswith(names)]
        return importlib_metadata.EntryPoints(kept)

    return entry_points


@functools.cache
def _installed(_: tuple[str, ...]) -> importlib_metadata.EntryPoints:
    """All entry points of a path, which take half of the time of a runtime's start."""
    return ALL()


# While tests are collected too: some modules make tensors, whose runtime later tests go on with.
importlib_metadata.entry_points = _hide("propolis-cpu-native")
# And in processes that tests start, of which some are given this one's path.
ALONE = str(ROOT / "tests" / "support" / "alone")
sys.path.insert(0, ALONE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ALONE, os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session", autouse=True)
def shared() -> Runtime:
    """
    The default runtime of whoever starts none of his own.

    Started before any test changes settings: models that tests share are on its CPU.
    """
    return runtimes.default_runtime()


@pytest.fixture(autouse=True)
def default_runtime_stays(request: pytest.FixtureRequest, shared: Runtime) -> Iterator[None]:
    """No test leaves another default runtime than it found; who sees all plugins, has another."""
    before = runtimes._default
    if before is shared and _sees_all(request.path):
        runtimes.set_default_runtime(None)
        yield
        runtimes.set_default_runtime(shared)
        return
    yield
    assert runtimes._default is before, "set_default_runtime: not what it was before"


@pytest.fixture(autouse=True)
def reference_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Of what is installed here, tests and their processes see the CPU reference alone.

    Those of other plugins, and of the page that lists what all plugins declare, see all.
    """
    if _sees_all(request.path):
        monkeypatch.setattr(importlib_metadata, "entry_points", ALL)
        others = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path != ALONE]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(others))
        return
    monkeypatch.setattr(importlib_metadata, "entry_points", _hide(*OURS))


def _sees_all(path: Path) -> bool:
    parts = path.relative_to(ROOT / "tests").parts
    page = ("integration", "test_op_matrix.py")
    return parts[0].startswith(("rocm_", "flash_", "cpu_native", "downstream")) or parts == page


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
