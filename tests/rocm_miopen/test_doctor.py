"""What `propolis doctor` says of MIOpen, and what the plugin needs to be asked."""

from __future__ import annotations

import json

from propolis.errors import DeviceError
from propolis_rocm_hip import hardware
from propolis_rocm_miopen import _ffi
from propolis_rocm_miopen import doctor
from propolis_rocm_miopen import probe


LIGHT = """
import importlib, pkgutil, sys
import propolis, numpy
before = set(sys.modules)
import propolis_rocm_miopen.plugin
print(sorted(set(sys.modules) - before))
for module in pkgutil.iter_modules(propolis_rocm_miopen.__path__):
    importlib.import_module(f"propolis_rocm_miopen.{module.name}")
maps = open("/proc/self/maps").read()
print([name for name in ("libamdhip64", "libMIOpen", "librocblas") if name in maps])
"""


def test_importing_loads_no_library(python) -> None:
    """The plugin's hooks bring nothing else; all of its modules import without a ROCm library."""
    done = python("-c", LIGHT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['propolis_rocm_miopen', 'propolis_rocm_miopen.plugin']",
        "[]",
    ]


def test_all_is_well(propolis, environ) -> None:
    """Library, version, a convolution, the folder of kernels and the variables."""
    done = propolis("doctor", "--json")
    found = {e["name"]: e for e in json.loads(done.stdout) if e["name"].startswith("rocm_miopen.")}
    assert {"ok"} == {e["status"] for e in found.values()}, found
    library = found["rocm_miopen.library"]["summary"]
    assert "libMIOpen.so.1 is MIOpen 3.5.0" in library
    assert library.endswith("rocm:0 (hipsim32): convolutions are right")
    assert environ["MIOPEN_CUSTOM_CACHE_DIR"] in found["rocm_miopen.cache"]["summary"]


def test_without_rocblas(rocm, monkeypatch) -> None:
    """A card that rocBLAS fails on is a warning: the rest of MIOpen serves."""
    lacking = probe.Verdict(gemm=False, without="it ended the process (SIGABRT)")
    monkeypatch.setattr(probe, "verdict", lambda *_: lacking)
    found = doctor.library()
    assert "warning" == found.status
    assert "convolutions are right, without rocBLAS: it ended the process" in found.summary
    monkeypatch.setattr(probe, "verdict", lambda *_: probe.Verdict("it is wrong"))
    found = doctor.library()
    assert ("warning", "it is wrong", _ffi.INSTALL) == (found.status, found.summary, found.remedy)


def test_no_library(rocm, monkeypatch) -> None:
    """A tree without MIOpen is a warning where there is a GPU; the remedy is what to install."""

    def lacking():
        raise DeviceError("no libMIOpen.so.1 beside HIP's library")

    monkeypatch.setattr(_ffi, "path", lacking)
    found = doctor.library()
    assert ("warning", _ffi.INSTALL) == (found.status, found.remedy)
    assert probe.on(rocm).refusal == "no libMIOpen.so.1 beside HIP's library"
    assert probe.probe().ok


def test_without_a_gpu(monkeypatch) -> None:
    """Without HIP, or without a GPU, there is nothing to check."""

    def broken():
        raise DeviceError("no libamdhip64.so")

    monkeypatch.setattr(hardware, "enumerate_gpus", broken)
    found = doctor.library()
    assert "skipped" == found.status
    assert "no libamdhip64.so" in found.summary


def test_cache(tmp_path) -> None:
    """A folder that nobody can write, or a cache that is switched off, costs every process."""
    (tmp_path / "file").touch()
    assert "ok" == doctor.cache({"MIOPEN_CUSTOM_CACHE_DIR": str(tmp_path / "new")}).status
    off = doctor.cache({"MIOPEN_DISABLE_CACHE": "1"})
    assert ("warning", "unset MIOPEN_DISABLE_CACHE") == (off.status, off.remedy)
    below = doctor.cache({"MIOPEN_CUSTOM_CACHE_DIR": str(tmp_path / "file" / "below")})
    assert "warning" == below.status
    assert "set MIOPEN_CUSTOM_CACHE_DIR" in below.remedy


def test_variables() -> None:
    """Variables that change what MIOpen does are shown; what the plugin sets itself is not."""
    assert "ok" == doctor.variables({"HOME": "here", "MIOPEN_FIND_MODE": "FAST"}).status
    found = doctor.variables({"MIOPEN_FIND_MODE": "NORMAL"})
    assert "warning" == found.status
    assert "in force: MIOPEN_FIND_MODE=NORMAL" == found.summary
