"""What the tests of the kernels share: the code objects of this checkout, if it has any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience
from vendor import default

from propolis import Runtime
from propolis.config import Config
from propolis.errors import DeviceNotFoundError
from propolis_rocm_kernels import _code
from propolis_rocm_kernels import _families


ROOT = Path(__file__).parents[2]
KERNELS = ["rocm_hip", "rocm_kernels"]


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
def modules():
    """What Python declares, by module."""
    return _families.modules()


@pytest.fixture(scope="session")
def runtime():
    """Numbers as they are; neither the CPU nor a vendor's library does what the kernels do not."""
    return Runtime.start(Config(fallback="error", plugins=KERNELS, numerics="exact"))


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
    with default(runtime):
        yield device


@pytest.fixture(scope="session")
def python(hipsim, tmp_path_factory):
    """Run Python with a simulated GPU: ``python(*arguments, NAME=value)``, the finished process."""
    settings = tmp_path_factory.mktemp("settings")

    def run(*arguments, **environ):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROPOLIS_", "HIPSIM_"))}
        return subprocess.run(
            [sys.executable, *arguments],
            env={
                **kept,
                "ROCM_PATH": str(hipsim),
                "XDG_CONFIG_HOME": str(settings),
                # Compiled once a checkout: the cache knows what it was compiled from.
                "XDG_CACHE_HOME": str(ROOT / "build" / "cache"),
                "PROPOLIS_FALLBACK": "error",
                "PROPOLIS_PLUGINS": ",".join(KERNELS),
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=patience(300),
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def simulate(python):
    """The same with a warp of this size; gives its output."""

    def run(*arguments, warp, **environ):
        done = python(*arguments, HIPSIM_WARP=str(warp), **environ)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def propolis(python):
    """Run a command line with a simulated GPU; gives the finished process."""

    def run(*arguments, **environ):
        return python("-c", "from propolis.cli import main; main()", *arguments, **environ)

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need a device are run where there is one: by `make conformance`."""
    for item in items:
        if item.path.parent == Path(__file__).parent and {"rocm", "device"} & set(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def counting(monkeypatch):
    """Makes a list of the blocks of each launch of these kernels, by whatever key."""

    def count(kernels):
        found = []

        def counted(kernel):
            def launch(device, blocks, *values, **options):
                found.append(blocks)
                kernel(device, blocks, *values, **options)

            return launch

        for key, kernel in list(kernels.items()):
            monkeypatch.setitem(kernels, key, counted(kernel))
        return found

    return count
