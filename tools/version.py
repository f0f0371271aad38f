"""
Give every distribution a version, `make version V=0.2.0`: they are released together.

It goes into each pyproject.toml (their pins of each other too) and ``__version__``, into what the
examples of the docs print, and the changelog's section of unreleased changes gets its name and day.
Reports carry the version they judged: `make conformance-report` renews ours.
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

import click


if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS: Final = r'(?m)(^version = "|"propolis[\w-]*(?:\[[\w,]+\])?==){old}(?=")'
CODE: Final = r'(?m)^(__version__ = "){old}(?=")'
# "cpu_ref (propolis-cpu-ref 0.1.0)" and "cpu_ref-0.1.0-x86_64"; "cpu_ref  0.1.0  propolis-cpu-ref".
SENTENCES: Final = r"(\(propolis-[a-z-]+ |\bcpu_ref-){old}(?=[)-])"
ROWS: Final = r"(?m)^(\w+ +)({old} +)(?=propolis-)"
UNRELEASED: Final = "## [Unreleased]\n"


@click.command()
@click.argument("version")
@click.argument("projects", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(version: str, projects: tuple[Path, ...]) -> None:
    """Write VERSION into PROJECTS, the folders of all distributions, and into the docs here."""
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        msg = f"{version!r} is no version: give three numbers, as in `make version V=0.2.0`"
        raise click.ClickException(msg)
    old = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    changelog = Path("CHANGELOG.md").read_text()
    if version == old or f"\n## [{version}]" in changelog:
        msg = f"{version} is the version already, or was: give one that the changelog lacks"
        raise click.ClickException(msg)
    for path, patterns in _files(projects):
        text = before = path.read_text()
        for pattern in patterns:
            text = _replace(pattern, old, version, text)
        if text != before:
            path.write_text(text)
            click.echo(path)
    heading = f"{UNRELEASED}\n## [{version}] - {datetime.now(UTC).date()}\n"
    Path("CHANGELOG.md").write_text(changelog.replace(UNRELEASED, heading, 1))
    click.echo(f"{old} -> {version}; next: make conformance-report")


def _files(projects: tuple[Path, ...]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Each file that may name the version, and how it does."""
    for project in projects:
        yield project / "pyproject.toml", (SETTINGS,)
        for module in sorted(
            [*project.glob("src/*/__init__.py"), *project.glob("src/*/_version.py")]
        ):
            yield module, (CODE,)
    for page in [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]:
        if page.parent.name != "reports" and page.name != "op-matrix.md":  # made from reports
            yield page, (SENTENCES, ROWS)


def _replace(pattern: str, old: str, new: str, text: str) -> str:
    """Columns keep their width."""

    def put(match: re.Match[str]) -> str:
        column = match[2] if match.re.groups > 1 else ""
        return match[1] + new.ljust(len(column))

    return re.sub(pattern.format(old=re.escape(old)), put, text)


if __name__ == "__main__":
    main()
