"""Our wheels, everything they need beside them, and fresh environments to install into."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.utils import canonicalize_name
from patience import patience


if TYPE_CHECKING:
    from collections.abc import Callable


ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT, *sorted(p.parent for p in ROOT.glob("*/pyproject.toml"))]
PROJECTS += sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml"))
PROJECTS += sorted(p.parent for p in ROOT.glob("models/*/pyproject.toml"))
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# What extras and plugins' tests need, beyond what every distribution does.
MORE = ["pillow", "pytest", "iniconfig"]
PRIVATE = ("COVERAGE_", "PIP_", "PROPOLIS_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "XDG_")


def call(*command: str | Path, **options) -> str:
    """What a command printed; what it said is in the error where it failed."""
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=patience(900),
        **options,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id) -> Callable[[str, Callable[[Path], None]], Path]:
    """Fill a folder once, whichever of pytest's processes comes first; the others wait for it."""
    root = tmp_path_factory.getbasetemp()
    root = root if worker_id == "master" else root.parent

    def made(name: str, fill: Callable[[Path], None]) -> Path:
        folder = root / name
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                part = root / f"{name}.part"
                part.mkdir()
                fill(part)
                part.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def dist(once) -> Path:
    """A folder with a wheel and an sdist of each of our distributions."""

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder]
        for project in PROJECTS:
            call(*command, project)

    return once("dist", build)


@pytest.fixture(scope="session")
def house(once) -> Path:
    """A folder with a wheel of everything that ours depend on, in the pinned versions."""

    def download(folder: Path) -> None:
        pins = ROOT / "requirements"
        wanted = ["-r", pins / "run.txt", "-c", pins / "dev.txt", *MORE]
        call(*PIP, "download", "--quiet", "--no-deps", "--dest", folder, *wanted)

    return once("house", download)


class Environment:
    """
    A fresh virtual environment; nothing of the one that runs the tests is in it.

    Attributes:
        variables: what its commands find in the environment.
    """

    def __init__(self, folder: Path, *links: Path) -> None:
        self.folder = folder
        # A tenth of a second; its pip would take two.
        venv.create(folder / "venv", with_pip=False)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(PRIVATE)}
        self.variables = {
            **inherited,
            "PATH": f"{folder / 'venv/bin'}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            # From our wheels and what was fetched for them: no index is asked.
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": " ".join(map(str, links)),
            "PIP_NO_COMPILE": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def install(self, *requirements: str | Path) -> None:
        """Install with pip, dependencies too."""
        python = self.folder / "venv/bin/python"
        call(*PIP, "--python", python, "install", *requirements, env=self.variables)

    def resolve(self, requirement: str) -> set[str]:
        """The names of everything that a requirement brings to an empty environment."""
        python = self.folder / "venv/bin/python"
        dry = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
        report = json.loads(call(*PIP, "--python", python, *dry, requirement, env=self.variables))
        return {canonicalize_name(i["metadata"]["name"]) for i in report["install"]}

    def run(self, *command: str | Path) -> str:
        """What a command of the environment prints, which must succeed."""
        program = self.folder / "venv/bin" / command[0]
        return call(program, *command[1:], env=self.variables, cwd=self.folder)

    def doctor(self) -> str:
        """What `propolis doctor` says, whatever it finds."""
        command = [self.folder / "venv/bin/propolis", "doctor"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=self.variables,
            cwd=self.folder,
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.stdout

    def refuse(self, *command: str | Path) -> str:
        """What a command that must fail says."""
        program = self.folder / "venv/bin" / command[0]
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            env=self.variables,
            cwd=self.folder,
        )
        assert done.returncode not in (0, 70), done.stdout
        return done.stderr

    def distributions(self) -> set[str]:
        """The names of everything installed."""
        code = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
        return set(map(canonicalize_name, self.run("python", "-c", code).split()))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, dist, house):
    """Makes environments, which are gone when the module's tests are done."""
    made = []

    def make() -> Environment:
        made.append(tmp_path_factory.mktemp("environment"))
        return Environment(made[-1], dist, house)

    yield make
    for folder in made:
        shutil.rmtree(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of these needs fresh environments: seconds."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
