"""Whoever asks may go away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fastapi import Request as HttpRequest


async def unless_gone(http: HttpRequest, work: Coroutine[Any, Any, None]) -> bool:
    """
    Do something for somebody, as long as they are there.

    Returns:
        Whether it was done.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


__all__ = ["unless_gone"]
