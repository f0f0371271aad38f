"""What the command lines of all workers share: standard input, bars, how a command ends."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from propolis.dispatch import DispatchTable
from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis import Device


def standard_input() -> str:
    """
    A prompt from standard input: all of it, but a byte order mark and one line end at its end.

    Whoever pipes a line in does not mean its end: models answer another text otherwise.

    Raises:
        UsageError: it is empty, as after a command that failed, or not UTF-8.
    """
    text = decoded(sys.stdin.buffer.read()).removeprefix("\ufeff")
    text = re.sub(r"\r?\n\Z", "", text)
    if not text:
        raise UsageError('standard input is empty, and "-" reads the prompt from there')
    return text


def decoded(raw: bytes, what: str = "standard input") -> str:
    """
    What was typed, or piped in, or given as an argument.

    Raises:
        UsageError: it is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        msg = f"{what} is not UTF-8: byte 0x{raw[exc.start]:02x} at {exc.start}"
        raise UsageError(msg) from None


def utf8(_ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A click callback: reads UTF-8 whatever the locale is, and refuses what is none."""
    if value is None:
        return None
    what = param.opts[0] if isinstance(param, click.Option) else (param.name or "").upper()
    return decoded(os.fsencode(value), what)


def filled(_ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A click callback: refuses an empty text, which would be taken for none."""
    if value is not None and not value.strip():
        msg = f"{' or '.join(param.opts)} is empty: name one, or leave it out"
        raise UsageError(msg)
    return value


model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    callback=filled,
    help="A GGUF file, a safetensors folder, or a name.",
)
"""Of commands that run a language model."""


def printable(text: str) -> str:
    r"""
    A text that others wrote, for a terminal: what steers one, or hides, is shown as an escape.

    >>> printable("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def watched(*, quiet: bool = False) -> bool:
    """Whether somebody looks at standard error and wants to see progress."""
    return not quiet and sys.stderr.isatty()


@contextmanager
def loading_bar(*, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for (bytes loaded, bytes in all), gone at the end; None where nobody looks."""
    if not watched(quiet=quiet):
        yield None
        return
    from rich.console import Console  # noqa: PLC0415  (rich only on a terminal)
    from rich.progress import BarColumn  # noqa: PLC0415
    from rich.progress import DownloadColumn  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    columns = ("loading", BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def steps_bar(*, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for (steps done, steps in all) with times, gone at the end; None as above."""
    if not watched(quiet=quiet):
        yield None
        return
    from rich.console import Console  # noqa: PLC0415  (rich only on a terminal)
    from rich.progress import BarColumn  # noqa: PLC0415
    from rich.progress import MofNCompleteColumn  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415
    from rich.progress import TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import TimeRemainingColumn  # noqa: PLC0415

    columns = (
        *("step", MofNCompleteColumn(), BarColumn()),
        *("in", TimeElapsedColumn(), "left", TimeRemainingColumn()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("drawing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """
    Let SIGTERM, and a terminal that closes, end the ``with`` block as errors do.

    Then they end the process as if nobody had caught them, which is what its parent is to see.
    """
    came: list[int] = []

    def end(number: int, _frame: object) -> None:
        if came:
            return  # it is ending
        came.append(number)
        raise KeyboardInterrupt  # whose ``SystemExit`` ended an op would be the op's fault

    ours = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), came[0])


def sum_up(ctx: click.Context, device: Device, *, quiet: bool = False) -> None:
    """
    Print the placement summary when a command ends, at an error or at Ctrl-C too.

    Args:
        ctx: of the command.
        device: what the worker runs on.
        quiet: the answer holds the summary; it is printed where there is no answer.
    """

    def end() -> None:
        placement = DispatchTable.of(device).placement
        if not placement.is_empty and not (quiet and sys.exc_info()[0] is None):
            for line in placement.lines():
                click.echo(line, err=True)

    ctx.call_on_close(end)


__all__ = [
    "decoded",
    "ended_by_signals",
    "filled",
    "loading_bar",
    "model_option",
    "printable",
    "standard_input",
    "steps_bar",
    "sum_up",
    "utf8",
    "watched",
]
