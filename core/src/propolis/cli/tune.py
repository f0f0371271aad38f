"""``propolis tune show`` and ``forget``: who was measured to be the fastest."""

from __future__ import annotations

from dataclasses import asdict

import click

from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import print_table
from propolis.cli._common import settings
from propolis.errors import ConfigError


@click.command()
@json_option
@click.pass_context
def show(ctx: click.Context, as_json: bool) -> None:
    """
    List who is taken, for calls of which sizes, instead of who goes first else.

    What was measured with other plugins, versions, drivers or hardware does not count, and is
    not listed.  A file that cannot be read is an error here; elsewhere it counts for nothing, with
    a warning.
    """
    from propolis.plugins.tuned_file import TunedFile  # noqa: PLC0415  (not for --help)
    from propolis.runtime import Runtime  # noqa: PLC0415

    config = settings(ctx)
    if fault := TunedFile(config.cache_dir).fault():
        raise ConfigError(fault)
    rows = list(Runtime.start(config).tuned.rows())
    if as_json:
        names = ("device", "op", "dtypes", "calls")
        print_json([{**dict(zip(names, row, strict=False)), **asdict(row[-1])} for row in rows])
        return
    if not rows:
        click.echo("nobody was measured faster than who leads: see `propolis tune llm`")
        return
    print_table(
        ("device", "op", "calls up to", "taken, and the others' microseconds"),
        (
            (device, f"{op} ({', '.join(kinds)})", calls, str(choice))
            for device, op, kinds, calls, choice in rows
        ),
    )


@click.command()
@click.pass_context
def forget(ctx: click.Context) -> None:
    """Forget what was measured: from then on plugins go in their order."""
    from propolis.plugins.tuned_file import TunedFile  # noqa: PLC0415

    file = TunedFile(settings(ctx).cache_dir)
    click.echo(f"{file.path}: {'forgotten' if file.clear() else 'there is none'}")
