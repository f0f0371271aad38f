"""The simulator, built, and processes that use it through the real hip-python."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from patience import patience


HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TREE = ROOT / "build" / "hipsim" / "host"
_FOREIGN = ("HIPSIM_", "ROCM_", "ROCBLAS_", "MIOPEN_")


@pytest.fixture(scope="session")
def tree():
    """The simulator's ROCm tree, brought up to date by make."""
    missing = [] if importlib.util.find_spec("rocm.bindings") else ["hip-python"]
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        missing.append("a C++ compiler")
    if missing:
        needed = f"the simulator's tests need {' and '.join(missing)}"
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE"):
            pytest.fail(f"PROPOLIS_REQUIRE_NATIVE is set, and {needed}")
        pytest.skip(needed)
    clean = {k: v for k, v in os.environ.items() if k != "MAKEFLAGS"}
    made = subprocess.run(
        ["make", "hipsim"],  # noqa: S607
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return TREE


class Simulator:
    """Runs Python code in a process whose ROCm is the simulator."""

    def __init__(self, tree, scratch):
        self.tree = tree
        self.scratch = scratch
        self.modules = {}

    def run(self, code, *, warp=32, timeout=120, **environ):
        """The finished process; ``gpu`` and ``hip`` are imported already."""
        return self.script(code, timeout, warp, self.module(warp), environ)

    def lines(self, code, **settings):
        """What the code prints, line by line; it must not fail."""
        done = self.run(code, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    def module(self, warp):
        """tests/hipsim/kernels.hip compiled for the warp size, once a session."""
        if warp not in self.modules:
            path = self.scratch / f"kernels{warp}.so"
            done = self.script(
                f"""
                from pathlib import Path
                source = Path({str(HERE / "kernels.hip")!r}).read_text()
                result, log, code = gpu.compile(source, "-O3", expressions=["doubled<float>"])
                if log:
                    print(log)
                Path({str(path)!r}).write_bytes(code)
                """,
                120,
                warp,
                path,
                {},
            )
            assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
            self.modules[warp] = path
        return self.modules[warp]

    def script(self, code, timeout, warp, module, environ):
        """As `run`, with the module that `gpu.Module` loads."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        return subprocess.run(
            [sys.executable, "-c", "import gpu\nfrom gpu import *\n" + textwrap.dedent(code)],
            env={
                **kept,
                "ROCM_PATH": str(self.tree),
                "PYTHONPATH": str(HERE),
                "HIPSIM_WARP": str(warp),
                "HIPSIM_TEST_MODULE": str(module),
                **{key: str(value) for key, value in environ.items()},
            },
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            check=False,
        )


@pytest.fixture(scope="session")
def sim(tree, tmp_path_factory):
    """Processes that use the simulator."""
    return Simulator(tree, tmp_path_factory.mktemp("hipsim"))


@pytest.fixture
def miopen(sim, tmp_path):
    """As ``sim.run``, for scripts that use MIOpen; what it compiles is kept in ``tmp_path``."""

    def run(code, **settings):
        start = "import miopen\nfrom miopen import *\n"
        return sim.run(start + code, **{"MIOPEN_CUSTOM_CACHE_DIR": tmp_path, **settings})

    return run


@pytest.fixture
def miopen_lines(miopen):
    """What such a script prints, line by line; it must not fail."""

    def lines(code, **settings):
        done = miopen(code, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return lines


@pytest.fixture(params=[32, 64])
def warp(request):
    """Each warp size of AMD's GPUs."""
    return request.param
