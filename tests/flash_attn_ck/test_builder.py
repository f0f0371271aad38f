"""Compiling Composable Kernel: what is up to date stays, and what is made can be launched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck._instances import ARGUMENTS
from propolis_flash_attn_ck._instances import INSTANCES
from propolis_flash_attn_ck.builder import compile as compiling
from propolis_flash_attn_ck.builder import headers
from propolis_rocm_hip import codeobject
from propolis_rocm_hip.modules import check_signatures
from propolis_rocm_kernels.builder import toolchain


ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Code objects of nobody else."""
    monkeypatch.setattr(_code, "CODE", tmp_path / "code")
    _code.manifest.cache_clear()
    yield tmp_path / "code"
    _code.manifest.cache_clear()


@pytest.fixture
def compiler(monkeypatch):
    """A compiler that takes no time; gives what it was asked for."""
    asked = []
    used = codeobject.Kernel("", (), 100, 50, 1000, 0, 0, 64)

    def compile_instance(_tools, _headers, instance, arch):
        asked.append((instance.name, arch))
        return f"{instance.name} {arch}".encode()

    def kernels(image):
        return {image.decode().split()[0]: used}

    monkeypatch.setattr(compiling, "compile_instance", compile_instance)
    monkeypatch.setattr(compiling.codeobject, "kernels", kernels)
    return asked


TOOLS = toolchain.Toolchain("clang++", "clang version 19", None)


def build(archs=("gfx942",), instances=INSTANCES[:2], tools=TOOLS):
    """Compile into the folder."""
    compiling.build(tools, Path("headers"), instances, archs, 2, lambda _: None)


def test_only_what_changed_is_compiled(folder, compiler, monkeypatch):
    """A second run compiles nothing; another compiler, flag or lost file does."""
    build()
    assert 2 == len(compiler)
    build()
    assert 2 == len(compiler)
    (folder / f"{INSTANCES[0].name}-gfx942.co.xz").unlink()
    build()
    assert 3 == len(compiler)
    build(tools=toolchain.Toolchain("clang++", "clang version 20", None))
    assert 5 == len(compiler)
    monkeypatch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-g"))
    build()
    assert 7 == len(compiler)


def test_what_nobody_wants_goes(folder, compiler):
    """Code objects of architectures that are not wanted any more are removed."""
    build(("gfx90a", "gfx942"))
    assert 4 == len(list(folder.glob("*.co.xz")))
    build(("gfx90a",))
    assert {f"{i.name}-gfx90a.co.xz" for i in INSTANCES[:2]} == {
        path.name for path in folder.glob("*.co.xz")
    }
    assert ["gfx90a"] == _code.archs()
    assert 4 == len(compiler)


def test_the_manifest_names_no_path(folder, compiler):
    """What is shipped is the same wherever it was built."""
    build()
    text = (folder / "manifest.json").read_text()
    assert str(ROOT) not in text
    assert "/usr" not in text


def test_headers_that_cannot_be_had(tmp_path, monkeypatch):
    """What pip says is in the error, with what was wanted."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(headers.HeadersError, match=r"flash-attn 2\.8\.3.* could not be fetched"):
        headers.fetch(tmp_path)


@pytest.mark.slow
def test_an_instance_for_real(capfd):
    """Composable Kernel compiles, into a kernel without scratch that takes our structure."""
    try:
        found = toolchain.find(ROOT / "build")
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE") != "1":
            present = (ROOT / "build" / "composable_kernel" / "complete").exists()
            if not present:
                pytest.skip("no headers of Composable Kernel: `make ck` fetches them")
        include = headers.fetch(ROOT / "build")
    except toolchain.ToolchainError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE") == "1":
            raise
        pytest.skip(str(exc))
    instance = INSTANCES[0]
    code = compiling.compile_instance(found, include, instance, "gfx942")
    assert "gfx942" == codeobject.arch_of(code)
    check_signatures(code, {instance.name: ARGUMENTS}, instance.name)
    kernel = codeobject.kernels(code)[instance.name]
    assert (0, 0, 64) == (kernel.scratch, kernel.spills, kernel.wavefront)
    assert 0 == kernel.scalar_spills
    assert kernel.registers <= 168
    assert kernel.lds <= 16384
