"""``propolis quarantine``: implementations that raised or crashed, and letting them back."""

from __future__ import annotations

from dataclasses import asdict

import click

from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import print_table
from propolis.cli._common import settings
from propolis.errors import ConfigError


@click.group()
def quarantine() -> None:
    """Show or forget implementations that raised or crashed.  Imports no plugin."""


@quarantine.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the implementations that are kept out, and what they did."""
    from propolis.plugins.quarantine_file import QuarantineFile  # noqa: PLC0415  (not for --help)

    file = QuarantineFile(settings(ctx).cache_dir)
    if fault := file.fault():
        raise ConfigError(fault)
    file.collect()
    entries = file.entries()
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    for kind, why in file.serial.kinds().items():
        click.echo(f"{kind}: each call will be waited for, to find out which failed: {why}")
    if not entries:
        click.echo("nothing is quarantined")
        return
    print_table(
        ("op", "plugin", "version", "device", "reason"),
        (
            (e.label, e.source.plugin, e.source.version, f"{e.kind} {e.arch}", e.reason)
            for e in entries
        ),
    )


@quarantine.command()
@click.option("--plugin", metavar="P", help="Only of this plugin.")
@click.option("--op", metavar="OP", help="Only of this op.")
@click.pass_context
def clear(ctx: click.Context, plugin: str | None, op: str | None) -> None:
    """Let implementations back; all of them unless an option says which."""
    from propolis import events  # noqa: PLC0415
    from propolis.ops import catalogue  # noqa: PLC0415
    from propolis.plugins.quarantine_file import QuarantineFile  # noqa: PLC0415
    from propolis.wording import did_you_mean  # noqa: PLC0415
    from propolis.wording import plugin_name  # noqa: PLC0415

    wanted = plugin_name(plugin) if plugin is not None else None
    file = QuarantineFile(settings(ctx).cache_dir)
    fault = file.fault()
    file.collect()
    gone = file.clear(wanted, op)
    if fault:
        click.echo(f"{file.path} starts anew: who was kept out is not known")
        return
    for entry in gone:
        events.QUARANTINE_CLEARED.emit(
            op=entry.op,
            dtypes=",".join(entry.dtypes),
            variant=entry.variant,
            plugin=entry.source.plugin,
            distribution=entry.source.distribution,
            version=entry.source.version,
            kind=entry.kind,
            arch=entry.arch,
        )
        click.echo(f"let back: {entry.label} of {entry.source} on {entry.kind} {entry.arch}")
    if not gone:
        # No error: plugins, which are not imported here, have ops of their own.
        known = op is None or op in catalogue()
        hint = "" if known else did_you_mean(str(op), catalogue(), most=1)
        click.echo("nothing to let back" + (f": there is no op {op!r}; {hint}" if hint else ""))
