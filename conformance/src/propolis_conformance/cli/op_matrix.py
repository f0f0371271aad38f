"""``propolis op-matrix``: which plugin has which op and dtype, and who has seen it work."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import settings
from propolis.errors import UsageError
from propolis.files import write_answer


if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, exists=True, path_type=Path)
_SHOWN = 20
_CITED = "| report | plugin |"  # in a page that has some


@click.command("op-matrix")
@click.option(
    "--reports", type=_FOLDER, metavar="FOLDER", help="Conformance reports (*.json) to take in."
)
@click.option("-o", "--output", type=_FILE, metavar="FILE", help="Write the page there.")
@click.option(
    "--check", type=_FILE, metavar="FILE", help="Compare with that page; exit 1 if it differs."
)
@json_option
@click.pass_context
def op_matrix(
    ctx: click.Context,
    reports: Path | None,
    output: Path | None,
    check: Path | None,
    as_json: bool,
) -> None:
    """
    Show which plugin has which op and dtype, and who has seen it work.

    Plugins are asked about the devices that they describe, present or not; none is
    probed, and no op runs.
    """
    from propolis_conformance import matrix  # noqa: PLC0415  (not for --help)
    from propolis_conformance.matrix_page import markdown  # noqa: PLC0415
    from propolis_conformance.report import load  # noqa: PLC0415

    if sum((output is not None, check is not None, as_json)) > 1:
        msg = "op-matrix: give one of -o (writes the page), --check (compares it) and --json"
        raise UsageError(msg)
    config = settings(ctx)
    files = sorted(reports.glob("*.json")) if reports is not None else []
    found = matrix.collect(config, {file.stem: load(file) for file in files})
    if as_json:
        print_json(found.as_dict())
        return
    page = output or check
    text = markdown(found, _links(files, page.parent) if page is not None else {})
    if page is None:
        click.echo(text, nl=False)
    elif check is None:
        write_answer(page, text)
    elif not _is_current(page, text, reports):
        ctx.exit(1)


def _links(files: list[Path], folder: Path) -> Mapping[str, str]:
    """Where each report can be read: its page, where there is one, else its JSON."""
    pages = {file.stem: file.with_suffix(".md") for file in files}
    return {
        file.stem: Path(
            os.path.relpath(pages[file.stem] if pages[file.stem].exists() else file, folder)
        ).as_posix()
        for file in files
    }


def _is_current(page: Path, text: str, reports: Path | None) -> bool:
    """Whether the page is what it should be; prints what differs, and the remedy."""
    given = f" --reports {reports}" if reports is not None else ""
    remedy = f"`propolis op-matrix{given} -o {page}` writes it anew"
    try:
        old = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        msg = f"{page} cannot be read: {getattr(exc, 'strerror', None) or exc}; {remedy}"
        raise UsageError(msg) from exc
    if old == text:
        click.echo(f"{page}: current")
        return True
    changes = list(
        difflib.unified_diff(old.splitlines(), text.splitlines(), str(page), "as it should be", n=0)
    )
    for line in changes[:_SHOWN]:
        click.echo(line.rstrip())
    if len(changes) > _SHOWN:
        click.echo(f"... {len(changes) - _SHOWN} more lines")
    if reports is None and _CITED in old:
        click.echo(f"{page}: it cites reports, and none are given: --reports FOLDER names them")
        return False
    click.echo(f"{page}: stale; {remedy}")
    return False
