"""hipRTC for real: ROCm's own library compiles without a GPU, where it is installed."""

import ctypes.util
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from patience import patience

from propolis.errors import DeviceError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip import codeobject
from propolis_rocm_hip import rtc
from propolis_rocm_hip.modules import check_signatures


SOURCE = """
#include "scale.h"
struct Strided { long long shape[6]; long long strides[6]; int rank; int pad; };
extern "C" __global__ void k(float* x, Strided s, long long n, float f) {
    x[threadIdx.x] *= SCALE * f * s.rank * PROPOLIS_WARP;
}
"""


def program(**changes):
    """A program with a header, a macro and all kinds of arguments."""
    fields = {
        "name": "scale",
        "source": SOURCE,
        "headers": {"scale.h": "#define SCALE 2.0f\n"},
        "flags": ("-O3", "-DPROPOLIS_WARP=32"),
        "arch": "gfx1030",
    }
    return rtc.Program(**(fields | changes))


def wait_until(happened):
    """Wait for something, half a minute at most."""
    until = time.monotonic() + patience(30)
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid):
    """Whether a process runs: one that is gone, or waits for whoever inherited it, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it goes while it is read
        return False


@pytest.fixture
def rocm(tmp_path, monkeypatch):
    """A ROCm tree around the system's library; Debian's has hipRTC in the HIP library itself."""
    name = ctypes.util.find_library("amdhip64")
    if name is None:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE"):
            pytest.fail("libamdhip64 is missing: apt-get install libamdhip64-5")
        pytest.skip("no ROCm library is installed")
    folder = tmp_path / "rocm" / "lib"
    folder.mkdir(parents=True)
    library = next(Path("/usr/lib").rglob(name))
    for stem in ("amdhip64", "hiprtc"):
        (folder / f"lib{stem}.so").symlink_to(library)
    monkeypatch.setenv("ROCM_PATH", str(folder.parent))


@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize(("arch", "warp"), [("gfx90a", 64), ("gfx1030", 32)])
def test_a_code_object_for_an_architecture_without_a_gpu(arch, warp):
    """It is for that architecture, and its kernels take what the signature says."""
    image = rtc.compile_program(program(arch=arch))
    assert codeobject.arch_of(image) == arch
    assert arch in codeobject.target_of(image)
    (kernel,) = codeobject.kernels(image).values()
    assert (kernel.name, kernel.wavefront) == ("k", warp)
    assert (kernel.spills, kernel.scalar_spills) == (0, 0)
    codeobject.check_arch(image, arch, "scale")
    check_signatures(image, {"k": "P12qiiqf"}, "scale")
    with pytest.raises(codeobject.CodeObjectError, match="takes address at 0, 104 bytes at 8"):
        check_signatures(image, {"k": "P12qiif"}, "scale")


@pytest.mark.usefixtures("rocm")
def test_a_source_with_an_error():
    """The message has the first error and where it is; the log has all of them."""
    with pytest.raises(rtc.CompileError) as caught:
        rtc.compile_program(program(source=SOURCE + "int f() { return nothing; }\nint g( {"))
    assert "hipRTC: scale for gfx1030: hiprtcCompileProgram: HIPRTC_ERROR_COMPILATION (6)" in str(
        caught.value
    )
    assert "use of undeclared identifier 'nothing'" in str(caught.value)
    assert "expected" in caught.value.log
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("rocm")
def test_a_compiler_that_aborts():
    """ROCm 5 aborts for an architecture it does not know; the message says so, and we live on."""
    with pytest.raises(rtc.CompileError) as caught:
        rtc.compile_program(program(arch="gfx1201"))
    assert "hipRTC: scale for gfx1201: the compiler" in str(caught.value)


@pytest.mark.usefixtures("rocm")
def test_a_compiler_that_hangs():
    """It is ended after the time it has, and so is what it started."""
    with pytest.raises(rtc.CompileError, match=r"no answer in 0.01 s: the compiler hangs"):
        rtc.compile_program(program(), timeout=0.01)


def test_a_killed_process_leaves_no_compiler(hipsim, tmp_path):
    """Whoever kills a process that compiles kills the compilers too."""
    compiler, started = tmp_path / "c++", tmp_path / "started"
    compiler.write_text(
        f"#!/bin/sh\necho $$ > {started}.part; mv {started}.part {started}\nsleep 99\n"
    )
    compiler.chmod(0o755)
    code = """
    from propolis_rocm_hip import rtc
    source = 'extern "C" __global__ void k() {}'
    rtc.compile_program(rtc.Program("k", source, {}, (), "hipsim32"))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "ROCM_PATH": str(hipsim), "HIPSIM_CXX": str(compiler)},
    ) as parent:
        wait_until(started.exists)
        parent.kill()
    pid = int(started.read_text())
    wait_until(lambda: not alive(pid))


def test_without_hiprtc(tmp_path, monkeypatch):
    """The reason is the loader's, and the remedy is to install ROCm."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libhiprtc.so").write_text("no library")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"no libhiprtc: .*file too short|invalid ELF header"):
        rtc.compile_program(program())


def test_a_child_that_says_nothing(monkeypatch, tmp_path):
    """Its exit code and its last words are the reason."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho first\necho out of luck\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(rtc.CompileError, match="the compiler exited 3: out of luck; "):
        rtc.compile_program(program())


def test_everything_that_decides_the_code_is_in_the_key(monkeypatch):
    """Source, headers, flags, architecture and compiler; nothing else."""
    monkeypatch.setattr(rtc, "compiler", lambda: "HIP 1")
    keys = {
        rtc.cache_key(one).digest
        for one in (
            program(),
            program(source=SOURCE + " "),
            program(headers={"scale.h": "#define SCALE 3.0f\n"}),
            program(headers={"other.h": "#define SCALE 2.0f\n"}),
            program(flags=("-O2", "-DPROPOLIS_WARP=32")),
            program(arch="gfx90a"),
        )
    }
    assert len(keys) == 6
    assert rtc.cache_key(program()).digest in keys
    monkeypatch.setattr(rtc, "compiler", lambda: "HIP 2")
    assert rtc.cache_key(program()).digest not in keys


def test_the_compiler_is_its_version_and_its_file(monkeypatch, tmp_path):
    """An update of hipRTC that keeps HIP's version is another compiler all the same."""
    library = tmp_path / "libhiprtc.so"
    library.write_text("one")
    monkeypatch.setattr(_ffi, "library_path", lambda _: str(library))
    monkeypatch.setattr(_ffi, "call", lambda *_: 71500000)
    first = rtc.compiler()
    assert first.startswith("HIP 71500000 (3 ")
    library.write_text("another")
    assert rtc.compiler() != first
    monkeypatch.setattr(_ffi, "library_path", lambda _: "libhiprtc.so")
    assert rtc.compiler() == "HIP 71500000"
