"""The builder: which compiler it takes, what it compiles again, and what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from propolis_rocm_hip import codeobject
from propolis_rocm_kernels import _code
from propolis_rocm_kernels import _families
from propolis_rocm_kernels import ops_ternary
from propolis_rocm_kernels._archs import ARCHS
from propolis_rocm_kernels.builder import compile as compiling
from propolis_rocm_kernels.builder import toolchain
from propolis_rocm_kernels.builder.__main__ import main
from propolis_rocm_kernels.builder.toolchain import ToolchainError
from propolis_rocm_kernels.ops_ternary import MODULE


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder for device libraries."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def found(scratch):
    """This machine's compiler."""
    try:
        return toolchain.find(scratch)
    except ToolchainError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE") == "1":
            raise
        pytest.skip(str(exc))


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A distribution of one module, the smallest, to build in."""
    native = tmp_path / "native"
    native.mkdir()
    for name in _code.source_files(MODULE):
        shutil.copy(_code.NATIVE / name, native / name)
    monkeypatch.setattr(_code, "NATIVE", native)
    monkeypatch.setattr(_code, "CODE", tmp_path / "code")
    monkeypatch.setattr(_families, "families", lambda: (ops_ternary,))
    _code.manifest.cache_clear()
    yield tmp_path
    _code.manifest.cache_clear()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Make a program that prints a line, and let the builder find no other."""

    def make(name, line):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{line}'\n")
        path.chmod(0o755)
        return str(path)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.delenv("HIP_CLANG_PATH", raising=False)
    return make


def build(found, archs):
    """Build the workshop; the reports, in the order of the architectures."""
    told = []
    compiling.build(found, [MODULE], archs, 2, told.append)
    return sorted(told)


@pytest.mark.slow
def test_only_what_changed_is_compiled(found, workshop) -> None:
    """A second run compiles nothing; a changed source, a lost file and a new target, those."""
    assert 1 == len(build(found, ["gfx1100"]))
    (file,) = (workshop / "code").glob("*.co.xz")
    first = file.read_bytes()
    assert [] == build(found, ["gfx1100"])
    file.write_bytes(first[:100])
    assert 1 == len(build(found, ["gfx1100"]))
    assert first == file.read_bytes()
    (line,) = build(found, ["gfx1100", "gfx90a"])
    assert line.startswith("ternary for gfx90a: ")
    with (workshop / "native/propolis_device.h").open("a") as header:
        header.write("// changed\n")
    assert 2 == len(build(found, ["gfx1100", "gfx90a"]))
    (workshop / "code/manifest.json").write_text('{"half":')
    assert 2 == len(build(found, ["gfx1100", "gfx90a"]))


@pytest.mark.slow
def test_files_of_other_targets_go(found, workshop) -> None:
    """What the manifest no longer names does not stay behind and into the wheel."""
    build(found, ["gfx1100", "gfx90a"])
    build(found, ["gfx90a"])
    assert ["ternary-gfx90a.co.xz"] == [p.name for p in (workshop / "code").glob("*.co.xz")]
    assert ["gfx90a"] == _code.archs()


@pytest.mark.slow
def test_builds_are_reproducible(found, workshop) -> None:
    """The same sources give the same bytes, wherever they lie."""
    build(found, ["gfx1030"])
    here = (workshop / "code/ternary-gfx1030.co.xz").read_bytes()
    (workshop / "native").rename(workshop / "elsewhere")
    _code.NATIVE = workshop / "elsewhere"
    shutil.rmtree(workshop / "code")
    build(found, ["gfx1030"])
    assert here == (workshop / "code/ternary-gfx1030.co.xz").read_bytes()


@pytest.mark.slow
def test_code_objects_load_only_while_fresh(found, workshop, monkeypatch) -> None:
    """Where source or declarations changed since, a module is given out as source alone."""
    build(found, ["gfx90a"])
    fresh = _code.module_source(MODULE)
    assert "gfx90a" == codeobject.arch_of(fresh.code["gfx90a"]())
    with monkeypatch.context() as other:
        other.setitem(MODULE.constants, "MORE", 1)
        assert {} == dict(_code.module_source(MODULE).code)
    assert _code.module_source(MODULE).code
    with (workshop / "native/ternary.hip").open("a") as source:
        source.write("// changed\n")
    stale = _code.module_source(MODULE)
    assert {} == dict(stale.code)
    assert "// changed\n" in stale.source()
    headers = {"propolis_declared.h", "propolis_device.h", "propolis_elementwise.h"}
    assert headers == set(stale.headers)
    assert "#pragma once" in stale.headers["propolis_device.h"]()


def test_a_compile_error_is_the_compilers_word(found, workshop) -> None:
    """What does not compile stops the build with the compiler's own lines."""
    with (workshop / "native/ternary.hip").open("a") as source:
        source.write("int broken( {\n")
    with pytest.raises(ToolchainError, match=r"ternary does not compile for gfx1201:[^$]*broken"):
        build(found, ["gfx1201"])


@pytest.mark.slow
def test_what_differs_from_python_stops_the_build(found, workshop, monkeypatch) -> None:
    """A wrong signature, a wrong number and a kernel that nobody declared: each is named."""
    monkeypatch.setitem(MODULE.kernels, "ternary_where_b1_b1", "PPPPi")
    with pytest.raises(ToolchainError, match=r"kernel ternary_where_b1_b1 .* takes something else"):
        build(found, ["gfx1100"])
    monkeypatch.setitem(MODULE.kernels, "ternary_where_b1_b1", "PPPPq")
    source = workshop / "native/ternary.hip"
    text = source.read_text()
    source.write_text(f"constexpr int BLOCK = 128;\n{text}")
    with pytest.raises(ToolchainError, match=r"ternary\.hip:1:\d+: error: redefinition of 'BLOCK'"):
        build(found, ["gfx1100"])
    source.write_text(f"{text}PROPOLIS_KERNEL ternary_spare(i32* out) {{ *out = 0; }}\n")
    with pytest.raises(ToolchainError, match=r"ops_ternary\.py does not declare: ternary_spare"):
        build(found, ["gfx1100"])


def test_a_warning_is_an_error(found, workshop) -> None:
    """Kernels compile without a warning."""
    with (workshop / "native/ternary.hip").open("a") as source:
        source.write("PROPOLIS_KERNEL spare(int unused) {}\n")
    with pytest.raises(ToolchainError, match="unused"):
        build(found, ["gfx942"])


@pytest.mark.slow
def test_the_command_reports(found, workshop, scratch) -> None:
    """The command says what it compiled, where that lies and how large it is."""
    done = CliRunner().invoke(main, ["--arch", "gfx1102", "--scratch", str(scratch)])
    assert 0 == done.exit_code, done.output
    assert found.version in done.output
    assert "ternary for gfx1102: " in done.output
    assert str(workshop / "code") in done.output
    assert ["gfx1102"] == json.loads((workshop / "code/manifest.json").read_text())["archs"]


def test_wheels_need_no_compiler(program, workshop) -> None:
    """Where it is told that it may, the command says what is left out, and is content."""
    done = CliRunner().invoke(main, ["--if-able", "--arch", "gfx1100", "--arch", "gfx90a"])
    assert 0 == done.exit_code
    assert "no clang was found; install ROCm" in done.output
    assert "left out: code objects for gfx1100, gfx90a; hipRTC" in done.output
    assert 1 == CliRunner().invoke(main, ["--arch", "gfx1100"]).exit_code


def test_old_code_objects_go_into_no_wheel(program, workshop) -> None:
    """Without a compiler code objects stay while they are of the sources, and no longer."""
    made = {"modules": {MODULE.name: {"source": _code.source_hash(MODULE)}}, "archs": ["gfx1100"]}
    (workshop / "code").mkdir()
    (workshop / "code/manifest.json").write_text(json.dumps(made))
    command = ["--if-able", "--arch", "gfx1100"]
    assert "nothing is left out" in CliRunner().invoke(main, command).output
    with (workshop / "native/ternary.hip").open("a") as source:
        source.write("// changed\n")
    assert "left out: code objects for gfx1100;" in CliRunner().invoke(main, command).output
    assert not (workshop / "code").exists()


def test_a_broken_kernel_is_not_left_out(found, workshop) -> None:
    """With a compiler what does not compile is an error, though code objects may be lacking."""
    with (workshop / "native/ternary.hip").open("a") as source:
        source.write("int broken( {\n")
    done = CliRunner().invoke(main, ["--if-able", "--arch", "gfx1100"])
    assert 1 == done.exit_code
    assert "ternary does not compile for gfx1100" in done.output


def test_no_compiler_at_all(program, tmp_path) -> None:
    """Without a clang the error says what to install."""
    with pytest.raises(ToolchainError, match=r"no clang was found; install ROCm.*clang-19"):
        toolchain.find(tmp_path)


def test_compilers_that_will_not_do(program, tmp_path, monkeypatch) -> None:
    """Each compiler that was looked at is named, with what is wrong with it."""
    old = program("clang++", "Debian clang version 14.0.6")
    with pytest.raises(ToolchainError, match=re.escape(f"{old} is clang 14; install")):
        toolchain.find(tmp_path)
    monkeypatch.setenv("HIP_CLANG_PATH", str(tmp_path))
    program("clang++", "g++ (Debian) 12")
    with pytest.raises(ToolchainError, match=r"clang\+\+ is no clang"):
        toolchain.find(tmp_path)
    monkeypatch.setenv("HIP_CLANG_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ToolchainError, match=r"nowhere/clang\+\+ is no clang"):
        toolchain.find(tmp_path)


def test_a_compiler_without_libraries(program, tmp_path, monkeypatch) -> None:
    """A clang of its own is not enough: the device libraries are asked for."""
    clang = program("clang++-19", "clang version 19.1.7")
    Path(clang).write_text("#!/bin/sh\n[ $1 = --version ] && echo clang version 19.1.7 || exit 1\n")
    monkeypatch.setattr(toolchain, "_system_libraries", lambda: None)
    with pytest.raises(ToolchainError, match=r"clang\+\+-19 has no device libraries"):
        toolchain.find(tmp_path)


def test_made_libraries_are_like_those_that_exist(found, tmp_path) -> None:
    """The number of an architecture, made from its name, is the one that the libraries have."""
    if found.libraries is None:
        pytest.skip("this compiler has libraries for every architecture")
    known = 0
    for arch, (_, isa) in ARCHS.items():
        file = found.libraries / f"oclc_isa_version_{arch[3:]}.bc"
        known += file.is_symlink()
        command = [found.clang, "-x", "ir", "-S", "-emit-llvm", str(file), "-o", "-"]
        target = ["--target=amdgcn-amd-amdhsa", "-nogpulib"]
        said = subprocess.run([*command, *target], capture_output=True, text=True, check=True)
        assert re.search(rf"@__oclc_ISA_version = .* constant i32 {isa},", said.stdout)
    assert known >= 2


def test_rocms_own_compiler_is_taken_as_it_is(program, tmp_path) -> None:
    """ROCm's clang has its libraries: it is taken first, and told nothing about them."""
    folder = tmp_path / "rocm/llvm/bin"
    folder.mkdir(parents=True)
    program("rocm/llvm/bin/clang++", "AMD clang version 19.0.0git (roc-6.3)")
    found = toolchain.find(tmp_path)
    assert str(folder / "clang++") == found.clang
    assert found.libraries is None
    flags = found.flags("gfx942")
    assert "--offload-arch=gfx942" in flags
    assert "-DPROPOLIS_WARP=64" in flags
    assert not any(flag.startswith("--rocm") for flag in flags)
