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
        return {kind: why for kind, (why, wanted) in self._read().items() if wanted}

    def was_tried(self, kind: str) -> bool:
        """Whether a process has waited for each call of the kind, in vain."""
        return not self._read().get(kind, ("", True))[1]

    def add(self, kind: str, why: str) -> None:
        """Let the next process wait for each call of this kind of device."""
        self._write({**self._read(), kind: (why, True)})

    def tried(self, kind: str) -> None:
        """Let later processes make calls as always: one that waited for each found nobody."""
        known = self._read()
        if kind in known:
            self._write({**known, kind: (known[kind][0], False)})

    def remove(self, kind: str) -> None:
        """Forget a kind."""
        known = self._read()
        if known.pop(kind, None) is not None:
            self._write(known)

    def _write(self, known: dict[str, tuple[str, bool]]) -> None:
        now = time.time()
        with contextlib.suppress(OSError):  # a read-only home: nobody looks for it
            replace_json(self.path, {kind: [*told, now] for kind, told in known.items()})

    def _read(self) -> dict[str, tuple[str, bool]]:
        found, now = read_json(self.path), time.time()
        try:
            return {
                str(kind): (str(why), bool(wanted))
                for kind, (why, wanted, when) in (found if isinstance(found, dict) else {}).items()
                if float(when) > now - _HOLDS
            }
        except (TypeError, ValueError):
            return {}


__all__ = ["SerialFile"]
