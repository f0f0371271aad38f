"""`make version` names a new version everywhere, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from propolis import __version__


ROOT = Path(__file__).parents[2]
PROJECTS = [".", *sorted(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("*/pyproject.toml"))]
PROJECTS += sorted(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("[pm]*s/*/pyproject.toml"))
NEW = "10.20.30"


@pytest.fixture
def house(tmp_path, monkeypatch) -> Path:
    """A copy of the files that may name the version, as they are in this checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*pyproject.toml", "*/__init__.py", "*/_version.py"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def give(tool, house):
    """Give the copy a version."""
    return lambda version: CliRunner().invoke(tool("version").main, [version, *PROJECTS])


def texts(house) -> dict[str, str]:
    """The copy's files, save the changelog and the reports, whose versions are history."""
    paths = (p for p in house.rglob("*") if p.is_file() and p.parent.name != "reports")
    return {str(p.relative_to(house)): p.read_text() for p in paths if p.name != "CHANGELOG.md"}


def test_the_version_is_new_everywhere(give, house) -> None:
    """Each version of ours, pin and example is the new one; the version of nobody else."""
    before = texts(house)
    assert 0 == give(NEW).exit_code
    after = texts(house)
    # Of a line, no more than the version and the blanks of its column may have changed.
    for name, text in after.items():
        pairs = zip(before[name].splitlines(), text.splitlines(), strict=True)
        for old, new in ((old, new) for old, new in pairs if old != new):
            assert "propolis" in old or "version" in old or "cpu_ref-" in old, f"{name}: {old}"
            assert old.replace(__version__, "").split() == new.replace(NEW, "").split()
    ours = re.compile(rf"propolis-[a-z-]+(?:\[\w+\])?[ =]+{re.escape(__version__)}\b")
    generated = {"docs/op-matrix.md"}
    assert not [name for name in set(after) - generated if ours.search(after[name])]
    for project in PROJECTS:
        assert f'\nversion = "{NEW}"\n' in (house / project / "pyproject.toml").read_text()
    assert f'__version__ = "{NEW}"\n' in (house / "core/src/propolis/_version.py").read_text()


def test_there_and_back(give, house) -> None:
    """Given the old version again, every file is as it was."""
    before = texts(house)
    (house / "CHANGELOG.md").write_text("## [Unreleased]\n")
    assert 0 == give(NEW).exit_code
    assert before != texts(house)
    assert 0 == give(__version__).exit_code
    assert before == texts(house)


def test_the_changelog_has_a_section(give, house) -> None:
    """What was unreleased is the new version's, with a day; above it is room for more."""
    (house / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n### Added\n\n- bees\n")
    give(NEW)
    written = (house / "CHANGELOG.md").read_text()
    section = rf"## \[Unreleased\]\n\n## \[{NEW}\] - \d{{4}}-\d\d-\d\d\n\n### Added\n\n- bees\n"
    assert re.fullmatch(rf"# Changelog\n\n{section}", written)


@pytest.mark.parametrize("version", ["", "0.2", "v0.2.0", "0.2.0rc1", NEW, __version__])
def test_what_is_no_new_version_is_refused(give, house, version) -> None:
    """What is no version, or is one already, changes nothing."""
    (house / "CHANGELOG.md").write_text(f"## [Unreleased]\n\n## [{NEW}] - 2026-01-01\n")
    before = texts(house)
    done = give(version)
    assert 1 == done.exit_code
    assert re.search(
        "is no version: give three numbers|is the version already, or was", done.output
    )
    assert before == texts(house)
