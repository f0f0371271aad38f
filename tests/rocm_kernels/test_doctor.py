"""What `propolis doctor` says of the code objects."""

from __future__ import annotations

import pytest

from propolis import DeviceProperties
from propolis.errors import DeviceError
from propolis_rocm_kernels import _code
from propolis_rocm_kernels.doctor import code_objects
from propolis_rocm_kernels.plugin import propolis_doctor_checks


@pytest.fixture(autouse=True)
def wheel(monkeypatch):
    """An installation with code objects for two architectures."""
    monkeypatch.setattr(_code, "archs", lambda: ["gfx90a", "gfx1100"])


def gpus(*archs):
    """GPUs of these architectures."""
    return lambda: [DeviceProperties("rocm", i, "GPU", arch) for i, arch in enumerate(archs)]


def test_code_objects_that_match() -> None:
    """Where every GPU has its code object, all is well."""
    found = code_objects(gpus("gfx1100", "gfx90a"))
    assert ("ok", "code objects for rocm:0 (gfx1100), rocm:1 (gfx90a)") == (
        found.status,
        found.summary,
    )


def test_a_gpu_without_code_object() -> None:
    """A GPU of another architecture is a warning: hipRTC has to compile for it."""
    found = code_objects(gpus("gfx1100", "gfx906"))
    assert "warning" == found.status
    assert "rocm:1 is gfx906: built for gfx90a, gfx1100" == found.summary
    assert "hipRTC" in found.remedy


def test_no_gpu() -> None:
    """Without a GPU, or without HIP, there is nothing to compare."""

    def broken():
        raise DeviceError("no libamdhip64.so")

    for present in (gpus(), broken):
        found = code_objects(present)
        assert "skipped" == found.status
        assert "built for gfx90a, gfx1100" in found.summary
        assert found.remedy


def test_no_code_objects(monkeypatch) -> None:
    """An installation without any says so."""
    monkeypatch.setattr(_code, "archs", list)
    assert "no code objects" in code_objects(gpus("gfx1100")).summary


def test_the_check_is_offered() -> None:
    """The plugin hands the check to `propolis doctor` under its own name."""
    (check,) = propolis_doctor_checks()
    assert "rocm_kernels.code-objects" == check.name
