"""What `propolis doctor` says of rocBLAS, and what the plugin needs to be asked."""

from __future__ import annotations

import ctypes
import json

import pytest

from propolis.errors import DeviceError
from propolis_rocm_blas import _ffi
from propolis_rocm_blas import doctor
from propolis_rocm_hip import _ffi as hip
from propolis_rocm_hip import hardware
from propolis_rocm_hip import trial
from propolis_rocm_hip.machine_code import ROCBLAS


LIGHT = """
import importlib, pkgutil, sys
import propolis, numpy
before = set(sys.modules)
import propolis_rocm_blas.plugin
print(sorted(set(sys.modules) - before))
for module in pkgutil.iter_modules(propolis_rocm_blas.__path__):
    importlib.import_module(f"propolis_rocm_blas.{module.name}")
maps = open("/proc/self/maps").read()
print([name for name in ("libamdhip64", "librocblas") if name in maps])
"""


def test_importing_loads_no_library(python) -> None:
    """The plugin's hooks bring nothing else; all of its modules import without a ROCm library."""
    done = python("-c", LIGHT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['propolis_rocm_blas', 'propolis_rocm_blas.plugin']", "[]"]


@pytest.mark.slow
def test_all_is_well(propolis) -> None:
    """Library, version, files, a product and the variables, each in its line."""
    done = propolis("doctor", "--json")
    found = {e["name"]: e for e in json.loads(done.stdout) if e["name"].startswith("rocm_blas.")}
    assert {"ok"} == {e["status"] for e in found.values()}, found
    assert (
        "librocblas.so.4 is rocBLAS 5.2.0.hipsim, HIP is 7.2"
        in found["rocm_blas.library"]["summary"]
    )
    files = found["rocm_blas.architecture"]["summary"]
    assert "rocm:0 (hipsim32): files in " in files
    assert files.endswith("a product is right")


def test_no_machine_code(rocm, monkeypatch) -> None:
    """A card that the library fails on is a warning; what helps is said once, as the remedy."""
    (gpu,) = hardware.enumerate_gpus()
    monkeypatch.setattr(trial, "outcome", lambda *_: trial.Outcome(ok=False, reason="it aborted"))
    found = doctor.architecture()
    assert "warning" == found.status
    assert found.summary.endswith(f"on rocm:0 ({gpu.arch}): it aborted")
    assert "look at `propolis doctor`" in found.remedy
    assert found.remedy not in found.summary


def test_another_release(rocm, monkeypatch) -> None:
    """A rocBLAS of another release than HIP's is a warning with both versions."""
    monkeypatch.setattr(hip, "version", lambda: (6, 4))
    found = doctor.library()
    assert "warning" == found.status
    assert "rocBLAS 5.2.0.hipsim, HIP is 6.4: rocBLAS 4 belongs to HIP 6" in found.summary


@pytest.mark.slow
def test_no_library(propolis, hipsim, tmp_path) -> None:
    """A tree without rocBLAS is named, with what to install; others serve, and nothing fails."""
    (tmp_path / "lib").mkdir()
    for name in ("libamdhip64.so", "libhiprtc.so"):
        (tmp_path / "lib" / name).write_bytes((hipsim / "lib" / name).read_bytes())
    for name in ("bin", "include"):
        (tmp_path / name).symlink_to(hipsim / name)
    told = propolis("explain", "matmul", "--device", "rocm:0", ROCM_PATH=str(tmp_path))
    (line,) = [line for line in told.stdout.splitlines() if "rejected: rocm_blas" in line]
    assert (
        f"no librocblas.so.5 or librocblas.so.4 beside HIP's library, in {tmp_path}/lib: " in line
    )
    assert "install rocBLAS of the same ROCm as HIP" in line
    checks = json.loads(propolis("doctor", "--json", ROCM_PATH=str(tmp_path)).stdout)
    (found,) = [e for e in checks if e["name"] == "rocm_blas.library"]
    assert ("warning", _ffi.INSTALL) == (found["status"], found["remedy"])


def test_without_a_gpu(monkeypatch) -> None:
    """Without HIP, or without a GPU, there is nothing to check."""

    def broken():
        raise DeviceError("no libamdhip64.so")

    monkeypatch.setattr(hardware, "enumerate_gpus", broken)
    for check in (doctor.library, doctor.architecture):
        found = check()
        assert "skipped" == found.status
        assert "no libamdhip64.so" in found.summary
        assert found.remedy


def test_a_library_without_a_gpu(rocm, monkeypatch) -> None:
    """A rocBLAS on a machine without a GPU is named, with what it has files for; not loaded."""
    path = _ffi.path()
    monkeypatch.setattr(hardware, "enumerate_gpus", list)
    monkeypatch.setattr(_ffi, "library", lambda: pytest.fail("it is loaded"))
    found = doctor.library()
    assert ("skipped", doctor._WITHOUT) == (found.status, found.remedy)
    assert f"no GPU to use {path} on; it has files for " in found.summary
    for arch in ROCBLAS.archs(path):
        assert arch in found.summary


@pytest.mark.parametrize(("said", "version"), [(b"4.4.1.", "4.4.1"), (b"5.2.0.abc", "5.2.0.abc")])
def test_a_version(said, version, monkeypatch) -> None:
    """A build without a commit, as a distribution's, ends its version with nothing behind a dot."""

    class Library:
        def function(self, name):
            if name.endswith("_size"):
                return lambda at: ctypes.memmove(at, bytes(ctypes.c_size_t(len(said) + 1)), 8)
            return lambda at, size: ctypes.memmove(at, said + b"\0", size)

    monkeypatch.setattr(_ffi, "library", Library)
    assert version == _ffi.version()


def test_variables() -> None:
    """Variables that change what rocBLAS does are shown."""
    assert "ok" == doctor.variables({"HOME": "here"}).status
    found = doctor.variables({"ROCBLAS_LAYER": "1", "ROCBLAS_CHECK_NUMERICS": "2"})
    assert "warning" == found.status
    assert "in force: ROCBLAS_CHECK_NUMERICS=2, ROCBLAS_LAYER=1" == found.summary
    assert found.remedy.startswith("unset ROCBLAS_CHECK_NUMERICS ROCBLAS_LAYER")


@pytest.mark.parametrize("place", ["library", "5.0.2/library"], ids=["amd", "debian"])
def test_files(place, tmp_path, monkeypatch) -> None:
    """Files of an architecture are found where AMD's packages have them, and where Debian's do."""
    monkeypatch.delenv(ROCBLAS.chosen, raising=False)
    folder = tmp_path / "rocblas" / place
    folder.mkdir(parents=True)
    for name in (
        "TensileLibrary_lazy_gfx1100.dat",
        "Kernels.so-000-gfx90a-xnack-.hsaco",
        "TensileLibrary_Type_HH_Contraction_l_Ailk_Bjlk_Cijk_Dijk_gfx942.co",
        "TensileManifest.txt",
    ):
        (folder / name).touch()
    assert {"gfx1100": folder, "gfx90a": folder, "gfx942": folder} == ROCBLAS.archs(
        tmp_path / "librocblas.so.4"
    )
    monkeypatch.setenv(ROCBLAS.chosen, str(tmp_path))
    assert {} == ROCBLAS.archs(tmp_path / "librocblas.so.4")
