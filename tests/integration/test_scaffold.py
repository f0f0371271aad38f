"""What `propolis new-plugin` writes installs, loads, serves its op and passes its tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from propolis.errors import UsageError
from propolis.scaffold import create


if TYPE_CHECKING:
    from pathlib import Path


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a command with this interpreter, in a copy of this environment."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_scaffolded_plugin_works_from_the_first_minute(tmp_path: Path) -> None:
    """Built, installed beside core, it is listed, wins its op, and its own tests pass."""
    main = ["-c", "from propolis.cli import main; main()"]
    made = run(*main, "new-plugin", "hive-add", "--in", str(tmp_path))
    assert 0 == made.returncode, made.stderr
    folder, site = tmp_path / "hive-add", tmp_path / "site"
    install = ["--no-deps", "--no-build-isolation", "--quiet", "--target", str(site), str(folder)]
    installed = run("-m", "pip", "install", *install)
    assert 0 == installed.returncode, installed.stderr
    with_it = {"PYTHONPATH": str(site), "PROPOLIS_CACHE_DIR": str(tmp_path / "cache")}
    listed = run(*main, "plugins", **with_it)
    rows = [line.split()[:4] for line in listed.stdout.splitlines()]
    assert ["hive_add", "0.1.0", "hive-add", "loaded"] in rows
    explained = run(*main, "explain", "add", "--dtype", "f32", **with_it)
    assert "winner: hive_add (hive-add 0.1.0)" in explained.stdout
    assert "standby: cpu_ref" in explained.stdout
    tests = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests"), **with_it)
    assert 0 == tests.returncode, tests.stdout


@pytest.mark.parametrize("name", ["", "1st", "class", "a b", "ü", "../x"])
def test_names_that_cannot_be(name: str, tmp_path: Path) -> None:
    """A name that is no module name is refused, and nothing is written."""
    with pytest.raises(UsageError, match="cannot name a plugin"):
        create(name, tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A folder that exists is left as it is."""
    create("mine", tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        create("mine", tmp_path)
