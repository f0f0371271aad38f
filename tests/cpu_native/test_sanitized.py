"""The kernels compiled with the compiler's sanitizers."""

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


def run(*command, **variables):
    """A command that must succeed; what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=patience(400),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    return done.stdout


def test_the_pool_has_no_races(tmp_path):
    """Callers in three threads, calls within tasks: the thread sanitizer finds nothing."""
    program = tmp_path / "race"
    flags = ("-std=c++20", "-O1", "-g", "-fsanitize=thread", "-I", NATIVE, "-pthread")
    run(CXX, *flags, Path(__file__).with_name("race.cpp"), NATIVE / "pool.cpp", "-o", program)
    # Its shadow memory does not fit how some kernels lay out addresses at random.
    fixed = (shutil.which("setarch"), "-R") if shutil.which("setarch") else ()
    assert run(*fixed, program) == "0 wrong\n"


def test_conformance_with_address_and_undefined_behaviour_sanitizers(tmp_path):
    """The suite's quick run over every op reads and writes nothing beside its arrays."""
    build, name = ROOT / "build" / "cpu_native" / "sanitized", level()
    defines = {"SANITIZE": "address,undefined", "LEVELS": name}
    run(
        *(sys.executable, "-m", "cmake", "-S", NATIVE, "-B", build, "-G", "Ninja"),
        *(f"-DPROPOLIS_{key}={value}" for key, value in defines.items()),
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}",
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    run(sys.executable, "-m", "cmake", "--build", build)
    (module,) = build.glob(f"_{name}*.so")
    package = tmp_path / "propolis_cpu_native"
    package.mkdir()
    for file in (ROOT / "plugins/cpu_native/src/propolis_cpu_native").glob("*.py"):
        shutil.copy(file, package)
    shutil.copy(module, package)
    libraries = [run(CXX, f"-print-file-name=lib{n}.so").strip() for n in ("asan", "ubsan")]
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from propolis.cli import main; main()"
    )
    said = run(
        *(sys.executable, "-c", program, tmp_path),
        *("conformance", "cpu_native", "--quick", "--seconds", "240"),
        LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0",  # the interpreter's own
        UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
        PYTHONPATH=str(tmp_path),
        PROPOLIS_PROBE_TIMEOUT="600",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert " 0 failed" in said or "failed" not in said, said
