"""What commands share: settings from options, tables for people, JSON for machines."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli import _answer


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence

    from propolis.config import Config


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_answer.when_given, help="Print JSON for scripts."
)


def settings(ctx: click.Context, **more: Any) -> Config:
    """
    The configuration with the command line's options on top, and logging set up.

    Args:
        ctx: of the command; its ``obj`` holds the group's options.
        more: the command's own settings; None means not given.

    Raises:
        ConfigError: a setting is wrong.
    """
    from propolis import events  # noqa: PLC0415  (structlog only when a command runs)
    from propolis import log  # noqa: PLC0415
    from propolis.config import Config  # noqa: PLC0415
    from propolis.config import unknown_variables  # noqa: PLC0415

    given = {name: value for name, value in more.items() if value is not None}
    config = Config.load(**{**(ctx.obj or {}), **given})
    if config.log_format == "json":
        from propolis.cli._lines import json_lines  # noqa: PLC0415  (only where it is asked for)

        ctx.find_root().with_resource(json_lines())
    log.configure(config)
    for name, near in unknown_variables(os.environ):
        events.CONFIG_UNKNOWN_VARIABLE.emit(name=name, did_you_mean=near)
    return config


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    out = _answer.stream()
    json.dump(value, out, indent=2, default=str)
    out.write("\n")
    out.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table, as wide as the terminal, or as its contents when piped."""
    from rich import box  # noqa: PLC0415  (rich only where a table is printed)
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    piped = not sys.stdout.isatty()
    Console(soft_wrap=piped, width=10_000 if piped else None).print(table)
