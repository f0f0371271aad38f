"""
Standard output for the one document that ``--json`` prints, whatever plugins print.

A plugin may print when it is imported, asked or called, from Python or from native code
that knows only descriptor 1.  While the document is being made all of that goes to
standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any
from typing import TextIO

import click


if TYPE_CHECKING:
    from collections.abc import Iterator

_KEY = "propolis.answer"


def reserve(ctx: click.Context) -> TextIO:
    """Standard output until the command ends; everybody else's is standard error."""
    found: TextIO = ctx.with_resource(_reserved())
    ctx.meta[_KEY] = found
    return found


def when_given(ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """The callback of an option that asks for a document."""
    if value and not ctx.resilient_parsing:
        reserve(ctx)
    return value


def stream() -> TextIO:
    """Where the running command prints its document."""
    ctx = click.get_current_context(silent=True)
    reserved = ctx.meta.get(_KEY) if ctx is not None else None
    return reserved if reserved is not None else sys.stdout


@contextmanager
def _reserved() -> Iterator[TextIO]:
    stdout = sys.stdout
    stdout.flush()
    with contextlib.ExitStack() as stack:
        answer = stdout
        saved = os.dup(1)
        stack.callback(os.close, saved)
        if descriptor(stdout) == 1:
            answer = os.fdopen(os.dup(1), "w", encoding=stdout.encoding)
            stack.callback(_close, answer)
        to_standard_error()
        stack.callback(os.dup2, saved, 1)
        # What native code and ``sys.__stdout__`` still hold.
        stack.callback(ctypes.CDLL(None).fflush, None)
        stack.callback(stdout.flush)
        sys.stdout = sys.stderr
        stack.callback(setattr, sys, "stdout", stdout)
        yield answer


def to_standard_error() -> None:
    """Make descriptor 1 what 2 is."""
    os.dup2(2, 1)


def stand_in() -> None:
    """
    Open what a shell closed (``<&-``, ``>&-``, ``2>&-``) of the standard streams.

    Input is empty then, what is said goes nowhere, and an answer cannot be written, which is an
    error once there is one.  No file that is opened later gets the number of a standard stream.
    """
    ways = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
    for name in (name for name in ways if getattr(sys, name) is None):
        file = os.open(os.devnull, ways[name])
        os.set_inheritable(file, True)
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, os.fdopen(file, mode, encoding="utf-8", errors="backslashreplace"))


def descriptor(file: TextIO) -> int:
    """The number of a file, -1 where it has none."""
    try:
        return file.fileno()
    except (OSError, ValueError):  # a test's, in memory
        return -1


def _close(file: TextIO) -> None:
    with contextlib.suppress(OSError):  # said already, when it was written
        file.close()
