"""What `propolis doctor` says of the code objects."""

from __future__ import annotations

import pytest

from propolis import DeviceProperties
from propolis.errors import DeviceError
from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck.doctor import code_objects
from propolis_flash_attn_ck.plugin import propolis_doctor_checks


@pytest.fixture(autouse=True)
def wheel(monkeypatch):
    """An installation with code objects for one architecture."""
    monkeypatch.setattr(_code, "archs", lambda: ["gfx942"])


def gpus(*archs):
    """GPUs of these architectures."""
    return lambda: [DeviceProperties("rocm", i, "GPU", arch) for i, arch in enumerate(archs)]


def test_code_objects_that_match():
    """Where an Instinct card has its code object, all is well."""
    found = code_objects(gpus("gfx942", "gfx1100"))
    assert ("ok", "code objects for rocm:0 (gfx942)") == (found.status, found.summary)


def test_a_radeon_card():
    """A card that Composable Kernel is not for is nothing to mend."""
    found = code_objects(gpus("gfx1100"))
    assert "skipped" == found.status
    assert found.summary == "rocm:0 is gfx1100; Composable Kernel's is for gfx90a, gfx942"


def test_an_instinct_card_without(monkeypatch):
    """A card that could be served and is not is a warning, with what to do."""
    found = code_objects(gpus("gfx90a"))
    assert ("warning", "rocm:0 is gfx90a: built for gfx942") == (found.status, found.summary)
    assert "make ck" in found.remedy
    monkeypatch.setattr(_code, "archs", list)
    assert "no code objects" in code_objects(gpus("gfx942")).summary


def test_no_gpu():
    """Without a GPU, or without HIP, there is nothing to compare."""

    def broken():
        raise DeviceError("no libamdhip64.so")

    for present in (gpus(), broken):
        found = code_objects(present)
        assert "skipped" == found.status
        assert found.remedy


def test_the_check_is_offered():
    """`propolis doctor` finds it by its name."""
    assert ["flash_attn_ck.code-objects"] == [check.name for check in propolis_doctor_checks()]
