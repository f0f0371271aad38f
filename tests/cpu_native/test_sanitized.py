"""The kernels of this machine's best level, compiled with the compiler's sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from propolis_cpu_native._native import level


ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "plugins" / "cpu_native" / "native"
CXX = os.environ.get("CXX", "c++")

pytestmark = pytest.mark.slow

# The folder's packages lead, before what finds those of an editable install.
FIRST = """
import sys
from importlib.machinery import PathFinder
sys.meta_path.insert(0, PathFinder)
"""
PLUGINS = "cpu_native,cpu_ref"
WHERE = "from propolis_cpu_native._native import native; print(native().__file__)"
# The suite's own bytes around tensors, which reading beyond one would find: there are none here, so
# that what is watched begins where the tensor ends.
GUARDS = {"\nGUARD = 256\n": "\nGUARD = 0\n", "is_block else 64\n": "is_block else 0\n"}


def run(*command, limit=400, **variables):
    """A command that must succeed; what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(limit),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-6000:]
    return done.stdout


def libraries():
    """What a program that was not compiled so must load first."""
    found = [run(CXX, f"-print-file-name=lib{name}.so").strip() for name in ("asan", "ubsan")]
    if not all(map(os.path.isabs, found)):
        msg = f"{CXX} has no libasan.so and libubsan.so; GCC does"
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE"):
            pytest.fail(f"PROPOLIS_REQUIRE_NATIVE is set, and {msg}")
        pytest.skip(msg)
    return found


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Environment variables with which Python has the sanitized kernels."""
    folder = tmp_path_factory.mktemp("sanitized")
    build, package = folder / "build", folder / "propolis_cpu_native"
    preload = libraries()
    cmake = (sys.executable, "-m", "cmake")
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": shutil.which(CXX),
        "PROPOLIS_LEVELS": level(),
        "PROPOLIS_SANITIZE": "address,undefined",
        "Python_EXECUTABLE": sys.executable,
    }
    run(*cmake, "-S", NATIVE, "-B", build, *(f"-D{k}={v}" for k, v in options.items()))
    run(*cmake, "--build", build, "--parallel", os.cpu_count(), limit=1200)
    source = NATIVE.parent / "src" / package.name
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    [module] = build.glob("*.so")
    shutil.copy(module, package)
    suite = folder / "propolis_conformance"
    source = ROOT / "conformance" / "src" / suite.name
    shutil.copytree(source, suite, ignore=shutil.ignore_patterns("__pycache__"))
    arena = (suite / "arena.py").read_text()
    for guard, none in GUARDS.items():
        assert arena.count(guard) == 1
        arena = arena.replace(guard, none)
    (suite / "arena.py").write_text(arena)
    (folder / "sitecustomize.py").write_text(FIRST)
    code = module.read_bytes()
    assert b"__asan_report_load" in code
    assert b"__ubsan_handle" in code
    return {
        "LD_PRELOAD": " ".join(preload),
        "PYTHONPATH": str(folder),
        # Python itself leaves memory behind.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=0",
    }


# One test: two would be compiled for twice, in two of pytest's processes.
def test_the_kernels_are_clean(sanitized):
    """
    No address out of bounds, nothing undefined: in conformance's quick suite, nor in tests that
    call kernels themselves.
    """
    assert run(sys.executable, "-c", WHERE, **sanitized).startswith(sanitized["PYTHONPATH"])
    command = "from propolis.cli import main; main()"
    suite = ("conformance", "cpu_native", "--quick", "--seconds", "150")
    # The tests below hide plugins, and would miss one that is asked for by name.
    said = run(sys.executable, "-c", command, *suite, **sanitized, PROPOLIS_PLUGINS=PLUGINS)
    assert " passed" in said
    assert "failed" not in said
    tests = (Path(__file__).with_name(f"test_{name}.py") for name in ("tiles", "images", "matrix"))
    flags = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not amx")
    assert " passed" in run(sys.executable, "-m", "pytest", *flags, *tests, **sanitized)
