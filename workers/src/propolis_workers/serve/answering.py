"""Several answers at once, as they come."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis_workers.serve.engine import AnswerError


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Sequence

Told = dict[str, Any]


def seed_of(seed: int | None, choice: int = 0) -> int | None:
    """
    The seed of a choice: none is another choice's, of this request or of another seed's.

    Args:
        seed: of the request; -1 is none, as llama.cpp's clients send it.
        choice: its number; the first has the request's own, where that is not negative.
    """
    if seed in (None, -1):
        return None
    if seed >= 0 and not choice:
        return seed
    key = (choice,) if seed >= 0 else (choice, 1)
    own = np.random.SeedSequence(abs(seed), spawn_key=key)
    return int(own.generate_state(1, np.uint64)[0])


async def merged(answers: Sequence[AsyncGenerator[Told]]) -> AsyncGenerator[tuple[int, Told]]:
    """
    What all say as it comes, each with its number; all are left when this is.

    Raises:
        AnswerError: one of them ended so, which ends the others; says which.
        PropolisError: the answers ended otherwise.
    """
    if len(answers) == 1:
        async with aclosing(answers[0]) as only:
            async for one in only:
                yield 0, one
        return
    said: asyncio.Queue[tuple[int, Told | Exception | None]] = asyncio.Queue()

    async def follow(index: int, answer: AsyncGenerator[Told]) -> None:
        try:
            async with aclosing(answer):
                async for one in answer:
                    said.put_nowait((index, one))
            said.put_nowait((index, None))
        except AnswerError as exc:
            msg = f"choice {index} of {len(answers)}: {exc}; the others were ended with it"
            said.put_nowait((index, AnswerError(msg, exc.kind)))
        except Exception as exc:  # noqa: BLE001  (raised below)
            said.put_nowait((index, exc))

    tasks = [asyncio.create_task(follow(*pair)) for pair in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            index, what = await said.get()
            if isinstance(what, Exception):
                raise what
            if what is None:
                left -= 1
            else:
                yield index, what
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["merged"]
