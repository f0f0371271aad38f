"""The lines that somebody typed in earlier chats, for the arrow keys of the next."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING
from typing import Final

from propolis.files import replace_text


if TYPE_CHECKING:
    from pathlib import Path

_LONGEST: Final = 10_000
"""Characters of a line that is kept: a pasted book is not typed again."""
_TYPED: Final = re.compile("[^\0\ud800-\udc7f\udd00-\udfff]*")


class History:
    """
    Lines in a file that its owner alone can read, one JSON string a line.

    Attributes:
        lines: oldest first.
    """

    def __init__(self, path: Path, limit: int) -> None:
        """
        Read the lines; where there are more than the limit, the oldest leave the file.

        Args:
            path: the file; it need not exist.
            limit: the most lines that are kept.

        Raises:
            OSError: the file cannot be read, or not made shorter.
        """
        self._path = path
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            text = ""
        rows = text.split("\n")[:-1]  # the last is half a row where a disk was full
        if len(rows) > limit:
            rows = rows[-limit:]
            replace_text(path, "".join(f"{row}\n" for row in rows))
        self.lines = [line for row in rows if (line := _said(row)) is not None]

    def add(self, line: str) -> bool:
        """
        Keep a line, at once: other chats may run, and this one end in whatever way.

        Returns:
            Whether it is kept: not the same line again, nor one that begins with a space.

        Raises:
            OSError: the file cannot be written.
        """
        again = self.lines[-1:] == [line]
        if again or not line or line[0].isspace() or len(line) > _LONGEST:
            return False
        self.lines.append(line)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(self._path, json.dumps(line, ensure_ascii=False) + "\n")
        return True

    @staticmethod
    def _write(path: Path, text: str) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def _said(row: str) -> str | None:
    """The line of a row; None where the file was written by somebody else."""
    try:
        line = json.loads(row)
    except (ValueError, RecursionError):
        return None
    # What no terminal gives cannot be given to readline.
    return line if isinstance(line, str) and _TYPED.fullmatch(line) else None


__all__ = ["History"]
