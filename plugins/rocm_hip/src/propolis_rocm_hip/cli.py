"""``propolis cache``: the code objects that hipRTC compiled for this machine's GPUs."""

from __future__ import annotations

from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING

import click

from propolis.cli import json_option
from propolis.cli import print_json
from propolis.cli import settings


if TYPE_CHECKING:
    from propolis_rocm_hip.cache import CodeCache
    from propolis_rocm_hip.cache import Entry


@click.group()
def cache() -> None:
    """Show, check or shrink the cache of compiled kernels.  Loads no ROCm library."""


@cache.command()
@json_option
@click.pass_context
def ls(ctx: click.Context, as_json: bool) -> None:
    """List the code objects that were compiled here, those used last first."""
    store = _store(ctx)
    entries = store.entries()
    if as_json:
        print_json([_record(entry) for entry in entries])
        return
    for entry in entries:
        used = datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%d %H:%M")
        click.echo(f"{entry.nbytes:>10}  {used}  {_name(entry)}")
    size = sum(entry.nbytes for entry in entries)
    click.echo(f"{len(entries)} code objects, {size / 2**20:.1f} MiB in {store.folder}")


@cache.command()
@json_option
@click.pass_context
def verify(ctx: click.Context, as_json: bool) -> None:
    """Check all checksums and remove what is damaged; exit code 1 when something was."""
    store = _store(ctx)
    entries = store.entries(verify=True)
    bad = [entry for entry in entries if entry.problem]
    for entry in bad:
        store.remove(entry)
    if as_json:
        print_json([_record(entry) for entry in bad])
    else:
        for entry in bad:
            click.echo(f"removed {entry.path.name}: {entry.problem}")
        click.echo(f"{len(entries) - len(bad)} of {len(entries)} code objects are sound")
    if bad:
        ctx.exit(1)


@cache.command()
@click.option(
    "--max-mib",
    type=click.IntRange(min=0),
    help="MiB that may remain; the cache's own limit unless given.",
)
@json_option
@click.pass_context
def gc(ctx: click.Context, max_mib: int | None, as_json: bool) -> None:
    """Remove what was not used for longest until the rest fits."""
    gone = _store(ctx).gc(None if max_mib is None else max_mib << 20)
    if as_json:
        print_json([_record(entry) for entry in gone])
        return
    for entry in gone:
        click.echo(f"removed {_name(entry)}")
    click.echo(f"{sum(entry.nbytes for entry in gone) / 2**20:.1f} MiB freed")


def _store(ctx: click.Context) -> CodeCache:
    from propolis_rocm_hip.cache import CodeCache  # noqa: PLC0415  (not for --help)

    return CodeCache.of(settings(ctx))


def _name(entry: Entry) -> str:
    if entry.key is None:
        return f"{entry.path.name}: {entry.problem}"
    return f"{entry.key.module} for {entry.key.arch}, {entry.key.compiler}"


def _record(entry: Entry) -> dict[str, object]:
    key = entry.key
    return {
        "file": str(entry.path),
        "bytes": entry.nbytes,
        "used": entry.used,
        "module": key.module if key else None,
        "arch": key.arch if key else None,
        "compiler": key.compiler if key else None,
        "problem": entry.problem,
    }
