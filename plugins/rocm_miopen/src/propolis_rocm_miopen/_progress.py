"""Say what takes long while it does: MIOpen compiles kernels at first use, for minutes at worst."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_miopen import events


if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST: Final = 2.0
"""Seconds that pass before anything is said."""

AGAIN: Final = 15.0
"""And between one line and the next."""


@contextlib.contextmanager
def told(device: str, what: str) -> Iterator[None]:
    """
    While the body runs, and once it ends, log what goes on; nothing if that is soon.

    Args:
        device: the device's id.
        what: for a person: what is done, of which shape.
    """
    started = time.monotonic()
    ended = threading.Event()

    def tell() -> None:
        pause = FIRST
        while not ended.wait(pause):
            events.MIOPEN_WORKING.emit(device=device, what=what, seconds=_since(started))
            pause = AGAIN

    watcher = threading.Thread(target=tell, name="miopen-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if time.monotonic() - started > FIRST:
            events.MIOPEN_DONE.emit(device=device, what=what, seconds=_since(started))


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


__all__ = ["AGAIN", "FIRST", "told"]
