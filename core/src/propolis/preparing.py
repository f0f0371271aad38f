"""
What takes long before a call can run, and is no call that hangs: compiling, searching.

Whoever watches a process from outside, and would end one that does nothing, asks what it prepares.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple


if TYPE_CHECKING:
    from collections.abc import Iterator


class Preparation(NamedTuple):
    """
    Something that is being prepared.

    Attributes:
        what: it is, for people: ``"hipRTC: norm for gfx1100"``.
        since: when it began, by the monotonic clock.
    """

    what: str
    since: float


_current: Final[dict[int, Preparation]] = {}
_numbers: Final = count()


@contextmanager
def preparing(what: str) -> Iterator[None]:
    """
    Say that this is being prepared, as long as the block runs.

    >>> with preparing("a kernel"):
    ...     prepared().what
    'a kernel'
    >>> prepared() is None
    True
    """
    number = next(_numbers)
    _current[number] = Preparation(what, time.monotonic())
    try:
        yield
    finally:
        del _current[number]


def prepared() -> Preparation | None:
    """What this process prepares just now, that which began last; None where it is nothing."""
    return max(list(_current.values()), key=lambda one: one.since, default=None)


__all__ = ["Preparation", "prepared", "preparing"]
