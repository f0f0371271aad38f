"""``propolis lock``: write down who serves what, and find out whether it changed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from propolis.cli._answer import reserve
from propolis.cli._answer import stream
from propolis.cli._common import settings
from propolis.cli.inspect import device_option
from propolis.errors import FileFormatError
from propolis.errors import UsageError
from propolis.files import write_answer


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write the table there.")
@click.option("--check", metavar="FILE", help="Compare with that file; exit 1 if it differs.")
@device_option
@click.pass_context
def lock(ctx: click.Context, output: str | None, check: str | None, device: str | None) -> None:
    """Print who serves each op for each dtype, as JSON that can be reviewed and checked."""
    from propolis.dispatch import lock as table  # noqa: PLC0415  (not for --help)
    from propolis.runtime import Runtime  # noqa: PLC0415

    if output is not None and check is not None:
        msg = "lock: give -o to write a file or --check to compare with one, not both"
        raise UsageError(msg)
    if output is None and check is None:
        reserve(ctx)  # the document is all that is printed
    locked = _read(Path(check)) if check is not None else None
    config = settings(ctx, device=device)
    now = table.lock(Runtime.start(config).device(config.device))
    if locked is not None:
        changes = _elsewhere(check, locked, now) or list(table.differences(locked, now))
        for line in changes:
            click.echo(line)
        if changes:
            ctx.exit(1)
        click.echo(f"{check}: nothing has changed")
        return
    text = _render(now)
    if output is None:
        click.echo(text, nl=False, file=stream())
        return
    write_answer(Path(output), text)


def _elsewhere(path: str | None, locked: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What to do where the file is another device's: comparing ops would say nothing."""
    then, here = locked.get("device"), now["device"]
    if then == here:
        return []
    if not isinstance(then, str):
        return [f"{path}: it does not say which device it was written for; write it anew"]
    again = shlex.join(["propolis", "lock", "--check", str(path), "--device", then])
    anew = shlex.join(["propolis", "lock", "-o", str(path), "--device", here])
    line = (
        f"{path} was written for {then} ({locked.get('arch')}), and this checks {here} "
        f"({now['arch']}): `{again}` checks the same device, `{anew}` writes it for this one"
    )
    return [line]


def _render(document: dict[str, Any]) -> str:
    """JSON with one line for each key: what changes is one line of a review."""
    lines = [
        f'  "{name}": {json.dumps(value)},' for name, value in document.items() if name != "ops"
    ]
    ops = []
    for op, table in document["ops"].items():
        rows = [f'      "{key}": {json.dumps(server)}' for key, server in table.items()]
        ops.append(f'    "{op}": {{\n' + ",\n".join(rows) + "\n    }")
    return "{\n" + "\n".join(lines) + '\n  "ops": {\n' + ",\n".join(ops) + "\n  }\n}\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as exc:
        remedy = "give a file that `propolis lock -o FILE` wrote"
        if isinstance(exc, FileNotFoundError):
            remedy = f"`propolis lock -o {shlex.quote(str(path))}` writes it"
        msg = f"{path} cannot be read: {exc.strerror}; {remedy}"
        raise UsageError(msg) from exc
    except (ValueError, RecursionError) as exc:
        msg = f"{path} is not JSON: {exc}; give a file that `propolis lock -o FILE` wrote"
        raise FileFormatError(msg) from exc
    tables = found.get("ops") if isinstance(found, dict) else None
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        msg = f"{path} is no lock file (no 'ops'); give one that `propolis lock -o FILE` wrote"
        raise FileFormatError(msg)
    return {**found}
