"""Say what takes long while it does: vendors' libraries compile at first use, minutes at worst."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING
from typing import Final

from propolis.preparing import preparing


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

FIRST: Final = 2.0
"""Seconds that pass before anything is said."""

AGAIN: Final = 15.0
"""And between one line and the next."""


@contextlib.contextmanager
def told(working: Callable[[float], None], done: Callable[[float], None]) -> Iterator[None]:
    """
    Say at times that the body runs, and once that it has ended; nothing if that is soon.

    Args:
        working: says that it does, given the seconds since it began.
        done: says that it has.
    """
    started = time.monotonic()
    ended = threading.Event()

    def since() -> float:
        return round(time.monotonic() - started, 1)

    def tell() -> None:
        pause = FIRST
        while not ended.wait(pause):
            working(since())
            pause = AGAIN

    watcher = threading.Thread(target=tell, name="rocm-progress", daemon=True)
    watcher.start()
    try:
        with preparing("what a vendor's library compiles or measures"):
            yield
    finally:
        ended.set()
        watcher.join()
        if time.monotonic() - started > FIRST:
            done(since())


__all__ = ["AGAIN", "FIRST", "told"]
