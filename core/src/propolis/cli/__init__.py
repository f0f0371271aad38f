"""
The command line: ``propolis COMMAND``.

Exit codes:

- 0: done.
- 1: done, and what was checked is not in order (``conformance``, ``doctor``, ``drift``,
  ``lock --check``, ``op-matrix --check``, ``replay``).
- 2: what was given cannot be used: an option, a setting, a file, a model.
- 3: a plugin, a device or the dispatch refused.
- 70: a bug in Propolis; ``--debug`` shows where.
- 130: interrupted.

Other distributions add commands through the entry-point group
``propolis.commands``; each names a click command.  What such commands share with
ours is exported here: ``settings``, ``json_option``, ``print_json``, ``print_table``.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

import click
import importlib_metadata

from propolis import __version__
from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import print_table
from propolis.cli._common import settings
from propolis.cli.conformance import conformance
from propolis.cli.doctor import doctor
from propolis.cli.inspect import devices
from propolis.cli.inspect import explain
from propolis.cli.inspect import ops
from propolis.cli.inspect import plugins
from propolis.cli.lock import lock
from propolis.cli.new_plugin import new_plugin
from propolis.cli.op_matrix import op_matrix
from propolis.cli.quarantine import quarantine
from propolis.cli.replay import replay
from propolis.errors import PropolisError
from propolis.plugins.discovery import identity
from propolis.plugins.loader import describe


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

GROUP = "propolis.commands"
INTERNAL_ERROR = 70
INTERRUPTED = 130
USAGE_ERROR = 2
# A disk, or a device, that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class _ReaderGoneError(Exception):
    """A closed pipe, under a name that click does not turn into exit code 1."""


@contextmanager
def _readers_that_leave() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as exc:
        raise _ReaderGoneError from exc


class Commands(click.Group):
    """Our own commands and those that other distributions contribute, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        contributed = {entry.name for entry in importlib_metadata.entry_points(group=GROUP)}
        return sorted({*super().list_commands(ctx), *contributed})

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments; ``--help`` prints here already."""
        with _readers_that_leave():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what it returns is no exit code."""
        with _readers_that_leave():
            super().invoke(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now if another distribution has it."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for entry in importlib_metadata.entry_points(group=GROUP, name=cmd_name):
            owner = identity(entry.dist)[0]
            try:
                command = entry.load()
            except ImportError as exc:
                return _broken(
                    cmd_name,
                    f"the command {cmd_name!r} of {owner} cannot be imported: {exc}",
                    f"install what it needs, for example `pip install 'propolis[{cmd_name}]'`",
                    exc,
                )
            except (Exception, SystemExit) as exc:  # noqa: BLE001  (a stranger's code)
                reason = f"importing the command {cmd_name!r} of {owner} raised {describe(exc)}"
                return _broken(cmd_name, reason, f"report it to the authors of {owner}", exc)
            if isinstance(command, click.Command):
                return command
            kind = type(command).__name__
            reason = f"the command {cmd_name!r} of {owner} is a {kind}, not a click command"
            return _broken(cmd_name, reason, f"report it to the authors of {owner}", None)
        return None


def _broken(name: str, reason: str, remedy: str, cause: BaseException | None) -> click.Command:
    """A command that says why the real one cannot be had; the others go on working."""

    def fail(**_: Any) -> None:
        msg = f"{reason}; {remedy}"
        raise PropolisError(msg) from cause

    return click.Command(
        name,
        callback=fail,
        help=reason,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="propolis")
@click.option("--debug", is_flag=True, help="End errors with a traceback.")
@click.option("--strict", is_flag=True, help="A plugin that fails to load is an error.")
@click.option("--metrics", is_flag=True, help="Measure ops: calls, bytes, seconds by plugin.")
@click.option("--plugins", metavar="A,B", help="Load only these plugins.")
@click.option("--disable-plugins", metavar="A,B", help="Never load these plugins.")
@click.option(
    "--op",
    "ops",
    metavar="OP=A,B",
    multiple=True,
    help="Plugins that go first for an op; may be given for several.",
)
@click.option("--numerics", metavar="KIND", help="exact or fast.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="auto, console or json.")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Inference on AMD GPUs through plugins, with a CPU that always works."""
    # Flags that are not given leave the environment's setting alone; an empty list is given.
    ctx.obj = {name: None if value is False else value for name, value in options.items()}
    ctx.obj["ops"] = ";".join(options["ops"]) or None


for _command in (
    conformance,
    devices,
    doctor,
    explain,
    lock,
    new_plugin,
    op_matrix,
    ops,
    plugins,
    quarantine,
    replay,
):
    cli.add_command(_command)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    arguments = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in arguments
    try:
        code = cli.main(arguments, prog_name="propolis", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except PropolisError as exc:
        _fail(exc, exc.exit_code, debug=debug)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except (BrokenPipeError, _ReaderGoneError):
        _reader_gone()
    except SystemExit as exc:
        # What rich makes of it.
        if isinstance(exc.__context__, BrokenPipeError):
            _reader_gone()
        raise
    except Exception as exc:  # noqa: BLE001  (the last line of defence)
        if isinstance(exc, OSError) and exc.errno in _FULL and exc.filename is None:
            click.echo(f"error: the output cannot be written: {exc.strerror}", err=True)
            _reader_gone(USAGE_ERROR)
        bug = f"{type(exc).__name__}: {exc} (a bug in propolis: --debug shows where)"
        _fail(exc, INTERNAL_ERROR, debug=debug, text=bug)


def _reader_gone(code: int = 0) -> NoReturn:
    """End well when the reader went away (``| head``); Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _fail(exc: Exception, code: int, *, debug: bool, text: str = "") -> None:
    if debug or _debug_setting():
        import traceback  # noqa: PLC0415

        traceback.print_exception(exc)
    click.echo(f"error: {' '.join((text or str(exc)).split())}", err=True)
    sys.exit(code)


def _debug_setting() -> bool:
    from propolis.config import Config  # noqa: PLC0415  (only when something failed)

    try:
        return Config.load().debug
    except PropolisError:
        return False  # the settings are what failed, and the message names them


__all__ = ["cli", "json_option", "main", "print_json", "print_table", "settings"]
