"""
The command ``propolis`` until core is imported, which takes most of a short command's time.

A package of its own: whatever lies in ``propolis`` can run only once that is imported.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn


def main() -> None:
    """Run the command line; Ctrl-C ends it while it is imported as it does afterwards."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's & ignores it
    if ours:
        signal.signal(signal.SIGINT, _interrupted)
    from propolis.cli import main as run  # noqa: PLC0415  (what may be interrupted)

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _interrupted(*_: object) -> NoReturn:
    """End without an exception, which whoever is being imported may catch or print."""
    with suppress(OSError):  # nobody may be there to read it
        os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


__all__ = ["main"]
