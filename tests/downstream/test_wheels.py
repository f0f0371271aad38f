"""What `make wheels` builds."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT, *sorted(p.parent for p in ROOT.glob("*/pyproject.toml"))]
PROJECTS += sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml"))
PROJECTS += sorted(p.parent for p in ROOT.glob("models/*/pyproject.toml"))


@pytest.mark.parametrize("project", PROJECTS, ids=lambda p: p.name)
def test_wheel_and_sdist_build(project: Path, dist: Path) -> None:
    """Each distribution builds; its wheel has the licence, and the code it is named for."""
    name = tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"]
    stem = name.replace("-", "_")
    (wheel,) = dist.glob(f"{stem}-[0-9]*.whl")
    assert list(dist.glob(f"{stem}-[0-9]*.tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    code = {name.partition("/")[0] for name in names if name.endswith(".py")}
    packages = {p.name for p in project.glob("src/*") if (p / "__init__.py").exists()}
    assert packages == code
    for package in packages:
        assert f"{package}/py.typed" in names
    pages = project.glob("src/**/static/*")  # what browsers are served
    assert {page.relative_to(project / "src").as_posix() for page in pages} <= set(names)
