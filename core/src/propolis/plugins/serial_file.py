"""
The kinds of device whose calls are waited for one by one, on disk.

A device runs calls later than they are launched, so where a process ends in a wait for it, or is
ended by a thread of its driver, what was launched last need not be at fault.  The next process
waits for each call before it makes another: if it ends the same way, it is known at whose call.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING
from typing import Final

from propolis.plugins.vetting import read_json
from propolis.plugins.vetting import replace_json


if TYPE_CHECKING:
    from pathlib import Path

_HOLDS: Final = 86400.0
"""Seconds after which nobody looks for what ended a process any more."""


class SerialFile:
    """Kinds of device in ``serialised.json`` of a cache folder; an unreadable file has none."""

    def __init__(self, cache_dir: Path) -> None:
        self.path = cache_dir / "serialised.json"

    def kinds(self) -> dict[str, str]:
        """Why, by kind of device."""
        now = time.time()
        return {kind: why for kind, (why, when) in self._read().items() if when > now - _HOLDS}

    def add(self, kind: str, why: str) -> None:
        """Let the next process wait for each call of this kind of device."""
        self._write({**self._read(), kind: (why, time.time())})

    def remove(self, kind: str) -> None:
        """Let later processes make calls as always."""
        known = self._read()
        if known.pop(kind, None) is not None:
            self._write(known)

    def _write(self, known: dict[str, tuple[str, float]]) -> None:
        with contextlib.suppress(OSError):  # a read-only home: nobody looks for it
            replace_json(self.path, known)

    def _read(self) -> dict[str, tuple[str, float]]:
        found = read_json(self.path)
        try:
            return {
                str(kind): (str(why), float(when))
                for kind, (why, when) in (found if isinstance(found, dict) else {}).items()
            }
        except (TypeError, ValueError):
            return {}


__all__ = ["SerialFile"]
