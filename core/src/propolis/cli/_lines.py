"""
Standard error as one JSON object a line, for ``--log-format json``.

Log lines are JSON already.  Whatever else is written, by us for people (rates, the
placement summary), by Python (warnings, tracebacks) or by plugins, becomes an object too.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any
from typing import TextIO

from propolis import events
from propolis.cli import _pump
from propolis.cli._answer import descriptor
from propolis.cli._pump import is_object


if TYPE_CHECKING:
    from collections.abc import Iterator

# Seconds for the last lines to pass, when the command has ended.
_PATIENCE = 2.0


class JsonLines(io.TextIOBase):
    """A text stream whose lines leave as JSON objects."""

    encoding = "utf-8"  # click asks before it writes
    errors = "replace"

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._line = ""

    def write(self, text: str) -> int:
        """Take text; lines leave when they are whole."""
        if not isinstance(text, str):
            msg = f"write() takes str, not {type(text).__name__}"
            raise TypeError(msg)
        *whole, self._line = (self._line + text).split("\n")
        for line in whole:
            self._put(line)
        return len(text)

    def flush(self) -> None:
        """Pass on what is whole."""
        self.stream.flush()

    def fileno(self) -> int:
        """That of the stream below."""
        return self.stream.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    def end(self) -> None:
        """Pass on a last line that has no end."""
        self._put(self._line)
        self._line = ""
        self.stream.flush()

    def put(self, line: str) -> None:
        """Pass on a line that is an object, with its end."""
        self.stream.write(line)
        self.stream.flush()

    def _put(self, line: str) -> None:
        if is_object(line):
            self.put(f"{line}\n")
        elif line.strip():
            self.put(events.CLI_TEXT.line(text=line.rstrip()))


@contextmanager
def json_lines() -> Iterator[None]:
    """Make standard error JSON lines inside the ``with`` block; once is enough."""
    stderr, show = sys.stderr, warnings.showwarning
    if isinstance(stderr, JsonLines):
        yield
        return
    lines = JsonLines(stderr)

    def warn(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_: Any,
        **__: Any,
    ) -> None:
        said = events.PYTHON_WARNING.line(
            message=str(message), category=category.__name__, file=filename, line=lineno
        )
        lines.put(said)

    sys.stderr, warnings.showwarning = lines, warn
    try:
        with _pumped() if descriptor(stderr) == 2 else contextlib.nullcontext():
            yield
            lines.end()
    finally:
        sys.stderr, warnings.showwarning = stderr, show


@contextmanager
def _pumped() -> Iterator[None]:
    """Lead descriptor 2, which native code writes to, through a process that makes JSON."""
    read, write = os.pipe()
    command = [sys.executable, "-I", "-S", _pump.__file__]
    try:
        pump = subprocess.Popen(
            [*command, events.CLI_TEXT.name, events.CLI_TEXT.level],
            stdin=read,
            stdout=2,
            start_new_session=True,  # Ctrl-C is not for it
        )
    finally:
        os.close(read)
    stderr = os.dup(2)
    os.dup2(write, 2)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Processes that were left behind may hold the pipe for ever.
            pump.wait(_PATIENCE)
