"""
Build a wheel and an sdist of each distribution that is named; `make wheels` runs it for all.

What is in the folder already, whole and made from the same files, is left as it is; what is there
beside the distributions' own goes, so that nobody publishes a wheel of yesterday.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import TypedDict

import click


if TYPE_CHECKING:
    from collections.abc import Iterator


BUILDERS = ("build", "hatchling", "scikit-build-core")


class Built(TypedDict):
    """What was built of a distribution: a digest of its sources, and of each file by name."""

    sources: str
    files: dict[str, str]


@click.command()
@click.argument("projects", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--dist", default=Path("dist"), type=click.Path(path_type=Path))
@click.option("--state", default=Path("build/wheels.json"), type=click.Path(path_type=Path))
def main(projects: tuple[Path, ...], dist: Path, state: Path) -> None:
    """Build what changed of PROJECTS, the folders of distributions."""
    dist.mkdir(parents=True, exist_ok=True)
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        compiled = [project for project in projects if (project / "native/CMakeLists.txt").exists()]
        projects = tuple(project for project in projects if project not in compiled)
        for project in compiled:
            click.echo(
                f"left out: {project}, for want of a C++ compiler (propolis[cpu] and [all] need it)"
            )
    old: dict[str, Built] = json.loads(state.read_text()) if state.exists() else {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        records = pool.map(partial(_one, old, dist), projects)
        built = dict(zip(map(str, projects), records, strict=True))
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(json.dumps(built, indent=1) + "\n")
    names = sorted(name for one in built.values() for name in one["files"])
    for left_over in (path for path in dist.iterdir() if path.name not in names):
        shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
    click.echo("\n".join(f"{dist}/{name}" for name in names))


def _one(old: dict[str, Built], dist: Path, project: Path) -> Built:
    """The record of a distribution, built where it was not."""
    sources = _digest(project)
    last = old.get(str(project))
    if last is not None and last["sources"] == sources and _intact(dist, last["files"]):
        return last
    with (project / "pyproject.toml").open("rb") as file:
        click.echo(f"building {tomllib.load(file)['project']['name']}")
    with tempfile.TemporaryDirectory(dir=dist) as folder:
        build(project, Path(folder))
        made = sorted(Path(folder).iterdir())
        files = {path.name: _of_file(path) for path in made}
        for path in made:
            path.replace(dist / path.name)
    return {"sources": sources, "files": files}


def build(project: Path, folder: Path) -> None:
    """Put the distribution's sdist into the folder, and the wheel that is built from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, project]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{project} does not build:\n{done.stdout}{done.stderr}"
        raise click.ClickException(msg)


def _digest(project: Path) -> str:
    """Of everything that the distribution is made from, the tools that make it included."""
    tools = [f"{name} {importlib.metadata.version(name)}" for name in BUILDERS]
    digest = hashlib.sha256("\0".join(tools).encode())
    for path in sorted(_sources(project)):
        digest.update(f"\0{path.relative_to(project)}\0{_of_file(path)}".encode())
    return digest.hexdigest()


def _sources(project: Path) -> Iterator[Path]:
    # The meta-distribution has no code: of the workspace around it, it takes files at the top.
    for path in project.rglob("*") if (project / "src").is_dir() else project.iterdir():
        parts = path.relative_to(project).parts
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in parts):
            yield path


def _intact(dist: Path, files: dict[str, str]) -> bool:
    paths = {dist / name: digest for name, digest in files.items()}
    return all(path.is_file() and _of_file(path) == sha for path, sha in paths.items())


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
