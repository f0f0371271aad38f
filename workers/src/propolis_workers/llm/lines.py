"""What is said in a chat: lines that somebody types, or that a pipe brings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import click

from propolis.config import state_home
from propolis.errors import ConfigError
from propolis.errors import UsageError
from propolis_workers.llm.history import History
from propolis_workers.terminal import decoded


if TYPE_CHECKING:
    from pathlib import Path

PROMPT: Final = "you> "


class Lines:
    """
    The lines of standard input, one by one.

    On a terminal they can be edited, and those of earlier chats come back by the arrow keys,
    where Python has the module readline.

    Attributes:
        typed: whether somebody types them.
    """

    def __init__(self, keep: int) -> None:
        """
        Prepare to read.

        Args:
            keep: lines that the history holds; 0 for none that outlives the chat.
        """
        self.typed = sys.stdin.isatty()
        # A prompt is for who types, and not for what reads the answers.
        self._edited = self.typed and sys.stdout.isatty()
        self._readline: Any = _readline() if self._edited else None
        self._history: History | None = None
        if self._readline is not None:
            self._readline.set_auto_history(False)
            self._readline.clear_history()
            if keep:
                self._open_history(keep)

    def next(self) -> str | None:
        """
        The next line, None at the end.

        Raises:
            UsageError: it is not UTF-8.
            KeyboardInterrupt: Ctrl-C.
        """
        if not self._edited:
            if self.typed:
                click.echo(PROMPT, nl=False, err=True)
            line = sys.stdin.buffer.readline()
            return decoded(line).rstrip("\r\n") if line else None
        try:
            text = input(PROMPT)
        except EOFError:
            return None
        except UnicodeDecodeError as exc:
            msg = f"what was typed is not UTF-8: {exc.reason}"
            raise UsageError(msg) from None
        self._remember(text)
        return text

    def _open_history(self, keep: int) -> None:
        try:
            self._history = History(history_path(), keep)
        except (OSError, ConfigError) as exc:
            self._lose_history(exc)
            return
        for line in self._history.lines:
            self._readline.add_history(line)

    def _remember(self, line: str) -> None:
        if self._readline is None or not line.strip():
            return
        if self._history is None:
            self._readline.add_history(line)
            return
        try:
            if self._history.add(line):
                self._readline.add_history(line)
        except OSError as exc:
            self._lose_history(exc)

    def _lose_history(self, exc: Exception) -> None:
        """Go on without the file, and say so once."""
        self._history = None
        click.echo(f"note: no history is kept: {exc}; --no-history says nothing", err=True)


def history_path() -> Path:
    """
    Where the lines of earlier chats are.

    Raises:
        ConfigError: this user has no home folder.
    """
    return state_home() / "chat_history"


def _readline() -> Any:
    """Python's readline, None where it was built without."""
    try:
        import readline  # noqa: PLC0415  (it takes hold of the terminal)
    except ImportError:
        return None
    return readline


__all__ = ["PROMPT", "Lines", "history_path"]
