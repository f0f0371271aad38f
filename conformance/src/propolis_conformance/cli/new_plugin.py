"""``propolis new-plugin``: the skeleton of a plugin's distribution."""

from __future__ import annotations

from pathlib import Path

import click

from propolis.errors import UsageError


@click.command("new-plugin")
@click.argument("name")
@click.option(
    "--device",
    "kind",
    metavar="KIND",
    help="Bring a new kind of device; ops for the CPU unless given.",
)
@click.option(
    "--in",
    "parent",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="The folder to make it in; the current one unless given.",
)
def new_plugin(name: str, kind: str | None, parent: Path) -> None:
    """Write the distribution of a new plugin called NAME, ready to install and test."""
    from propolis_conformance.scaffold import create  # noqa: PLC0415  (not for --help)

    try:
        written = create(name, parent, kind)
    except OSError as exc:
        msg = f"{parent} cannot be written: {exc.strerror}; choose another folder by --in"
        raise UsageError(msg) from exc
    for path in written:
        click.echo(path)
    folder = written[0].parent
    # pip takes a bare word for a name to look up.
    where = folder if folder.is_absolute() else f"./{folder}"
    click.echo(f"next: pip install -e '{where}[test]'", err=True)
