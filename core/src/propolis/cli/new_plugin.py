"""``propolis new-plugin``: the skeleton of a plugin's distribution."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("new-plugin")
@click.argument("name")
@click.option(
    "--in",
    "parent",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="The folder to make it in; the current one unless given.",
)
def new_plugin(name: str, parent: Path) -> None:
    """Write the distribution of a new plugin called NAME, ready to install and test."""
    from propolis.scaffold import create  # noqa: PLC0415  (not for --help)

    for path in create(name, parent):
        click.echo(path)
    click.echo(f"next: pip install -e {path.parents[1]} && propolis plugins", err=True)
