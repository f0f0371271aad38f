"""`make wheels` builds what changed, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner


ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A workspace of a meta-distribution and one with code, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "core/src/one").mkdir(parents=True)
    (tmp_path / "core/src/one/__init__.py").write_text("")
    for project in (tmp_path, tmp_path / "core"):
        (project / "pyproject.toml").write_text(f'[project]\nname = "{project.name}"\n')
    return tmp_path


@pytest.fixture
def wheels(tool, folder, monkeypatch):
    """Run the tool, its builds replaced by files of a version; gives what it built and lists."""
    module = tool("wheels")
    version = ["1"]

    def build(project: Path, out: Path) -> None:
        name = project.resolve().name
        if version[0] == "broken":
            msg = f"{project} does not build"
            raise click.ClickException(msg)
        (out / f"{name}-{version[0]}.whl").write_text("wheel")
        (out / f"{name}-{version[0]}.tar.gz").write_text("sdist")

    monkeypatch.setattr(module, "build", build)

    def run(now: str = "1") -> list[str]:
        version[0] = now
        done = CliRunner().invoke(module.main, [".", "core"])
        if now == "broken":
            assert done.exit_code == 1
            return [done.output]
        assert done.exit_code == 0, done.output
        listed = {line for line in done.output.splitlines() if line.startswith("dist/")}
        assert listed == {f"dist/{path.name}" for path in (folder / "dist").iterdir()}
        return sorted(line for line in done.output.splitlines() if line not in listed)

    return run


def test_a_second_run_builds_nothing(wheels, folder) -> None:
    """All is built once; then nothing, though files were touched, compiled or hidden."""
    assert ["building core", f"building {folder.name}"] == wheels()
    (folder / "core/src/one/__pycache__").mkdir()
    (folder / "core/src/one/__pycache__/x.pyc").write_text("x")
    (folder / ".coverage.host").write_text("x")
    (folder / "docs").mkdir()
    (folder / "docs/page.md").write_text("not of the meta-distribution")
    os.utime(folder / "core/pyproject.toml", (1, 1))
    assert [] == wheels()


@pytest.mark.parametrize(
    "change", ["edit", "add", "rename", "delete", "lost wheel", "half a wheel"]
)
def test_what_changed_is_built(wheels, folder, change) -> None:
    """A changed, new, renamed or deleted source, and a wheel that is not whole: that one alone."""
    source = folder / "core/src/one/code.txt"
    source.write_text("code objects, git-ignored or not")
    wheels()
    match change:
        case "edit":
            source.write_text("other code objects")
        case "add":
            (folder / "core/README.md").write_text("new")
        case "rename":
            source.rename(source.with_name("renamed.txt"))
        case "delete":
            source.unlink()
        case "lost wheel":
            (folder / "dist/core-1.whl").unlink()
        case "half a wheel":
            (folder / "dist/core-1.whl").write_text("whe")
    assert ["building core"] == wheels()
    assert "wheel" == (folder / "dist/core-1.whl").read_text()
    assert [] == wheels()


def test_the_tools_of_the_build_count(wheels, tool, monkeypatch) -> None:
    """With another build backend everything is built anew."""
    wheels()
    monkeypatch.setattr("importlib.metadata.version", lambda _: "99")
    assert 2 == len(wheels())


def test_old_wheels_go(wheels, folder) -> None:
    """After a new version dist/ has its files alone, whatever else lay there."""
    wheels()
    (folder / "dist/stranger").mkdir()
    (folder / "core/pyproject.toml").write_text('[project]\nname = "core"\nversion = "2"\n')
    assert ["building core"] == wheels("2")
    names = {path.name for path in (folder / "dist").iterdir()}
    assert {"core-2.whl", "core-2.tar.gz"} <= names
    assert not names & {"core-1.whl", "core-1.tar.gz", "stranger"}


def test_what_does_not_build_is_said(wheels, folder) -> None:
    """A failed build ends the run with its name, and is tried again at the next."""
    (said,) = wheels("broken")
    assert "does not build" in said
    assert 2 == len(wheels())


def test_builds_are_real(tool, folder) -> None:
    """Where a build fails, the error has what the program that builds said of it."""
    with pytest.raises(click.ClickException, match=r"src does not build:[^$]*pyproject\.toml"):
        tool("wheels").build(folder / "core/src", folder / "out")


def test_without_a_compiler_the_rest_is_built(wheels, folder, monkeypatch) -> None:
    """A distribution in C++ is left out by name, with the extras that need it; others are built."""
    monkeypatch.setenv("CXX", "absent-compiler")
    (folder / "core/native").mkdir()
    (folder / "core/native/CMakeLists.txt").write_text("")
    left_out, *built = sorted(wheels(), key=lambda line: not line.startswith("left out"))
    assert left_out.startswith("left out: core, for want of a C++ compiler")
    assert "propolis[cpu] and [all] need it" in left_out
    assert built == [f"building {folder.name}"]


@pytest.mark.parametrize(
    ("archs", "compiles"),
    [("", "builder --if-able"), ("gfx1100 gfx942", "--arch gfx1100 --arch gfx942"), ("none", "")],
)
def test_which_kernels_are_compiled(archs, compiles):
    """All, those of some architectures, or none, which is said."""
    make = ["make", "-n", "--no-print-directory", "wheels", f"ARCHS={archs}"]
    environ = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        make, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert ("rocm_kernels.builder" in done) == bool(compiles)
    assert compiles in done
    assert ("left out: the HIP kernels" in done) == (archs == "none")
    assert "tools/wheels.py" in done
