"""
The command line: ``propolis COMMAND``.

Exit codes:

- 0: done.
- 1: done, and what was checked is not in order (``cache verify``, ``conformance``,
  ``doctor``, ``drift``, ``lock --check``, ``op-matrix --check``, ``replay``); or the network, the
  hub or the disk refused (``models pull``).
- 2: what was given cannot be used: an option, a setting, a file, a model.
- 3: a plugin, a device or the dispatch refused.
- 70: a bug in Propolis; ``--debug`` shows where.
- 130: interrupted.

Other distributions add commands through the entry-point group
``propolis.commands``, and such that measure something, below ``propolis tune``, through
``propolis.tune``; each names a click command.  What such commands share with
ours is exported here: ``settings``, ``json_option``, ``print_json``, ``print_table``.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

import click
import importlib_metadata

from propolis import events
from propolis._version import __version__
from propolis.cli._answer import stand_in
from propolis.cli._answer import to_standard_error
from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import print_table
from propolis.cli._common import settings
from propolis.cli._lines import JsonLines
from propolis.cli._lines import json_lines
from propolis.cli.doctor import doctor
from propolis.cli.inspect import devices
from propolis.cli.inspect import explain
from propolis.cli.inspect import ops
from propolis.cli.inspect import plugins
from propolis.cli.lock import lock
from propolis.cli.quarantine import quarantine
from propolis.cli.tune import forget
from propolis.cli.tune import show
from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis.plugins.discovery import identity
from propolis.wording import describe
from propolis.wording import refused


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis.config import Config

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
    """
    Our own commands and those that other distributions contribute, imported on use.

    Attributes:
        entry_points: the group that they name theirs in.
    """

    entry_points = GROUP

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        entries = importlib_metadata.entry_points(group=self.entry_points)
        contributed = {entry.name for entry in entries}
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
        for entry in importlib_metadata.entry_points(group=self.entry_points, name=cmd_name):
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


class _Tune(Commands):
    """What can be measured; the plugins and workers whose it is name it."""

    entry_points = "propolis.tune"


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


for _command in (devices, doctor, explain, lock, ops, plugins, quarantine):
    cli.add_command(_command)


@cli.group(cls=_Tune)
def tune() -> None:
    """Measure who is fastest on this machine, and take them from then on."""


for _command in (forget, show):
    tune.add_command(_command)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    closed = sys.stdout is None
    stand_in()
    arguments = list(sys.argv[1:] if args is None else args)
    asked = _log_format(arguments)
    with json_lines() if asked == "json" else nullcontext():
        try:
            code = cli.main(arguments, prog_name="propolis", standalone_mode=False)
            sys.stdout.flush()
        except Exception as exc:  # noqa: BLE001  (the last line of defence)
            _end(exc, debug="--debug" in arguments, log_format=asked, closed=closed)
        except KeyboardInterrupt:
            _say("interrupted", INTERRUPTED)
        except SystemExit as exc:
            # What rich makes of it.
            if isinstance(exc.__context__, BrokenPipeError):
                _reader_gone()
            raise
    if args is None:
        to_standard_error()  # what exit handlers print is no part of the answer
    sys.exit(code)


def _log_format(arguments: Sequence[str]) -> str | None:
    """The format that the command line or the environment asks for; a file is read later."""
    flags = {name for o in cli.params if getattr(o, "is_flag", False) for name in o.opts}
    found = os.environ.get("PROPOLIS_LOG_FORMAT")
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            break  # the command
        name, given, value = word.partition("=")
        if name not in flags:
            value = value if given else next(words, "")
        found = value if name == "--log-format" else found
    return found


def _end(exc: Exception, *, debug: bool, log_format: str | None, closed: bool) -> NoReturn:
    """Say how the command failed, and exit with the code for it."""
    fail = partial(_fail, exc, debug=debug, log_format=log_format)
    if isinstance(exc, PropolisError):
        fail(exc.exit_code, str(exc))
    if isinstance(exc, click.exceptions.NoArgsIsHelpError):
        exc.show()
        sys.exit(exc.exit_code)
    if isinstance(exc, click.ClickException):
        where = exc.ctx.command_path if isinstance(exc, click.UsageError) and exc.ctx else ""
        hint = f"; `{where} --help` lists what can be given" if where else ""
        fail(exc.exit_code, exc.format_message().rstrip(".") + hint)
    if isinstance(exc, click.Abort):
        _say("interrupted", INTERRUPTED)
    if isinstance(exc, BrokenPipeError | _ReaderGoneError):
        _reader_gone()
    # Where standard output was closed, what stands in for it takes nothing.
    full = (*_FULL, errno.EBADF) if closed else _FULL
    if isinstance(exc, OSError) and exc.errno in full and exc.filename is None:
        _to_nowhere()
        fail(USAGE_ERROR, f"the output cannot be written: {exc.strerror}")
    if isinstance(exc, MemoryError):
        said = f"the host, or what this process may have of it, lacks memory: {exc}".rstrip(": ")
        fail(OutOfMemoryError.exit_code, said)
    if (known := refused(exc)) is not None:
        fail(USAGE_ERROR, ": ".join(known))
    bug = f"{describe(exc)} (a bug in propolis: `propolis --debug ...` shows where)"
    fail(INTERNAL_ERROR, bug)


def _reader_gone() -> NoReturn:
    """End well when the reader went away (``| head``)."""
    _to_nowhere()
    sys.exit(0)


def _to_nowhere() -> None:
    """Drop what standard output still holds; Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str, code: int) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(code)


def _fail(exc: Exception, code: int, text: str, *, debug: bool, log_format: str | None) -> NoReturn:
    """One line, and with ``--debug`` the traceback before it."""
    config = _settings()
    trace = None
    if debug or (config is not None and config.debug):
        import traceback  # noqa: PLC0415

        trace = "".join(traceback.format_exception(exc))
    # What a file says may stand in it: that steers no terminal.
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    as_json = log_format is None and config is not None and config.log_format == "json"
    with json_lines() if as_json else nullcontext():
        if isinstance(sys.stderr, JsonLines):
            said = events.CLI_ERROR.line(message=message, exit_code=code, traceback=trace)
            sys.stderr.put(said)
        else:
            click.echo(f"{trace or ''}error: {message}", err=True)
    sys.exit(code)


def _settings() -> Config | None:
    from propolis.config import Config  # noqa: PLC0415  (only when something failed)

    try:
        return Config.load()
    except PropolisError:
        return None  # the settings are what failed, and the message names them


__all__ = ["cli", "json_option", "main", "print_json", "print_table", "settings"]
