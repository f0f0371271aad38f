"""What is built and shipped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name


ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT, *sorted(p.parent for p in ROOT.glob("*/pyproject.toml"))]
PROJECTS += sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml"))
PROJECTS += sorted(p.parent for p in ROOT.glob("models/*/pyproject.toml"))


def metadata(project: Path) -> dict:
    """The [project] table of a distribution."""
    return tomllib.loads((project / "pyproject.toml").read_text())["project"]


def tracked() -> list[Path]:
    """The files that a commit holds."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_versions_agree() -> None:
    """All distributions have one version, and pin each other, all of them ours, to it."""
    versions = {metadata(p)["version"] for p in PROJECTS}
    assert len(versions) == 1
    (version,) = versions
    names = {metadata(p)["name"] for p in PROJECTS}
    for project in PROJECTS:
        table = metadata(project)
        extras = table.get("optional-dependencies", {})
        for requirement in chain(table.get("dependencies", []), *extras.values()):
            if requirement.startswith("propolis"):
                name, _, pin = requirement.partition("==")
                assert pin == version, requirement
                assert name.partition("[")[0] in names, requirement


def test_extras() -> None:
    """The meta-distribution offers the extras that the README names."""
    assert {"cpu", "llm", "sd", "serve", "ray", "rocm", "all"} == set(
        metadata(ROOT)["optional-dependencies"]
    )


@pytest.mark.parametrize("file", sorted(ROOT.glob("requirements/*.txt")), ids=lambda f: f.stem)
def test_requirements_are_plain_pins(file: Path) -> None:
    """A file of requirements names one version of each distribution, once."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("#", "-r "))]
    pins = [re.fullmatch(r"([\w.-]+)==[\w.]+", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    names = [canonicalize_name(pin[1]) for pin in pins]
    assert len(set(names)) == len(names), sorted(names)


def test_licences_are_one() -> None:
    """Every distribution ships the licence of the project."""
    licence = (ROOT / "LICENSE").read_text()
    for project in PROJECTS:
        assert licence == (project / "LICENSE").read_text()


def test_nothing_names_a_registry_or_a_machine() -> None:
    """No tracked file names a package registry's host, or a path of a machine."""
    hosts = re.compile(r"pypi\.org|pythonhosted\.org|files\.python|deb\.debian\.org|npmjs\.org")
    paths = re.compile(r"(?<![\w.~/])/(?:work|farm|root)/")
    for file in tracked():
        if file.suffix in (".json", ".png", ".safetensors") or file == Path(__file__):
            continue
        text = file.read_text(errors="replace")
        assert hosts.search(text) is None, file
        assert paths.search(text) is None, file


def test_files_fit_in_a_head() -> None:
    """No source file exceeds 600 lines; one in thirty may have more than 400."""
    lengths = {f: f.read_text().count("\n") for f in tracked() if f.suffix == ".py"}
    assert max(lengths.values()) <= 600
    assert len([n for n in lengths.values() if n > 400]) <= len(lengths) // 30


def test_importing_core_and_plugins_loads_little(tmp_path: Path) -> None:
    """`import propolis` loads neither settings nor logging; the plugin loads no ROCm library."""
    code = (
        "import sys, propolis;"
        "heavy = {'pydantic', 'structlog', 'rich', 'click'} & set(sys.modules);"
        "import propolis_cpu_ref.plugin; maps = open('/proc/self/maps').read();"
        "print(sorted(heavy), 'libamdhip64' in maps)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert "[] False" == done.stdout.strip()
