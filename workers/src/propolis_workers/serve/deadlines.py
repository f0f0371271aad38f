"""How long an answer may take."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Final
from typing import TypeVar

from fastapi import Header
from pydantic import Field

from propolis_workers.serve.answers import DeadlineError
from propolis_workers.serve.answers import Until


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")

_DAY: Final = 86400

Seconds = Annotated[float, Field(gt=0, le=_DAY, allow_inf_nan=False)]
"""What a request's body says."""

Timeout = Annotated[
    float | None, Header(alias="X-Request-Timeout", gt=0, le=_DAY, allow_inf_nan=False)
]
"""What its header says."""


class Deadlines:
    """The deadlines of a server's answers."""

    def __init__(self, most: float | None = None) -> None:
        """
        Take what the server allows.

        Args:
            most: seconds, whatever a request asks; None for any number.
        """
        self._most = most

    def until(self, *asked: float | None) -> Until | None:
        """
        When an answer that is asked for now must have ended.

        Args:
            asked: seconds, as the request says here and there; the fewest count.

        Returns:
            A time of the event loop's clock; None for no deadline.
        """
        given = [(one, "request") for one in asked if one is not None]
        if self._most is not None:
            given.append((self._most, "server"))
        if not given:
            return None
        seconds, who = min(given)
        now = asyncio.get_running_loop().time()
        return Until(now + seconds, f"the {seconds:g} s that the {who} allows")


async def threaded(
    until: float | None,
    work: Callable[..., T],
    *arguments: Any,
    pool: ThreadPoolExecutor | None = None,
) -> T:
    """
    Do something that takes its time beside the event loop.

    Args:
        until: when it must have ended, by the loop's clock; None for any time.
        work: what to do.
        arguments: of it.
        pool: the threads that do it; asyncio's own when None.

    Raises:
        DeadlineError: it took too long; it goes on, and nobody hears of it.
    """
    try:
        async with asyncio.timeout_at(until):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, partial(work, *arguments))
    except TimeoutError as exc:
        raise DeadlineError(until) from exc


__all__ = ["Deadlines", "Seconds", "Timeout", "threaded"]
