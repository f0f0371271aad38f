"""``propolis doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import settings


if TYPE_CHECKING:
    from propolis.doctor import Finding

_MARKS = {"ok": "ok     ", "warning": "warning", "error": "ERROR  ", "skipped": "skipped"}


@click.command()
@click.option("--no-import", is_flag=True, help="Only the first phase, which imports no plugin.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, no_import: bool, as_json: bool) -> None:
    """
    Check the installation; exit code 1 when something is wrong.

    The first phase reads metadata and imports no plugin; the second loads them as a
    worker would and runs their own checks.
    """
    from propolis.doctor import examine  # noqa: PLC0415  (not for --help)

    findings: list[Finding] = []
    for finding in examine(lambda: settings(ctx), import_plugins=not no_import):
        findings.append(finding)
        if not as_json:
            click.echo(f"{_MARKS[finding.result.status]} {finding.name}: {finding.result.summary}")
            if finding.result.remedy:
                click.echo(f"        -> {finding.result.remedy}")
    if as_json:
        print_json(
            [
                {"phase": f.phase, "name": f.name, **asdict(f.result), "fields": dict(f.fields)}
                for f in findings
            ]
        )
    if any(f.result.status == "error" for f in findings):
        ctx.exit(1)
