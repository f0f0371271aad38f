"""
Answers on their way, each from the moment it is asked for until it is left.

Whoever asks is registered at once, so that no more can ever wait than may.  What watches answers,
as traces do, is told of each as it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal
from typing import Protocol
from typing import Self

from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis_workers import events


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from collections.abc import Sequence

    Told = dict[str, Any]
    Asked = Mapping[str, Any]
    Watch = Callable[[Asked], "Watcher"]
    Leaving = Literal["cancel", "end"]


class EngineGoneError(PropolisError):
    """The process that computes ended; the request may be made again once it is back."""


class EngineFailedError(EngineGoneError):
    """There is no engine, and none will be started."""


class DrainingError(EngineGoneError):
    """The server is about to end: it finishes what it has, and takes nothing new."""


class BusyError(PropolisError):
    """As many requests wait as may."""


class Until(float):
    """
    When an answer must have ended, by the event loop's clock.

    Attributes:
        why: how long it may take, and who says so.
    """

    why: str

    def __new__(cls, time: float, why: str) -> Self:
        """Of that time."""
        own = super().__new__(cls, time)
        own.why = why
        return own


class DeadlineError(PropolisError):
    """An answer took longer than it may."""

    def __init__(self, until: float | None = None) -> None:
        super().__init__(f"the answer took longer than {getattr(until, 'why', 'it may')}")


class AnswerError(PropolisError):
    """
    The engine could not answer a request; the message is its own.

    Attributes:
        kind: the name of its error's class.
        mistaken: it is a mistake of whoever asked, and no fault of the model or a kernel.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.mistaken = kind in ("ArgumentTypeError", "ModelError", "UsageError")


class Watcher(Protocol):
    """Sees one answer on its way."""

    def told(self, one: Told) -> None:
        """A token came, as :func:`propolis_workers.serve.messages.drawn`."""

    def ended(self, end: str) -> None:
        """It is over: ``max_tokens``, ``eos`` and so on, ``error`` or ``cancelled``."""


class _Way:
    """What there is of an answer while it is on its way, whoever holds the answer itself."""

    def __init__(self, leave: Callable[[bool], None], watchers: Sequence[Watcher]) -> None:
        self.said: asyncio.Queue[Told] = asyncio.Queue()
        self.watchers = watchers
        self.end: str | None = None  # how it ended
        self.left = False
        self._leave = leave

    def close(self) -> None:
        """There is nobody any more who reads it."""
        if not self.left:
            self.left = True
            self._leave(self.end is not None)
            for watcher in self.watchers:
                watcher.ended(self.end or "cancelled")


class Answer(AsyncGenerator[dict[str, Any], None]):
    """
    What the process says of a request as it comes; the last has ``finish``.

    It is iterated once, in ``async with aclosing(...)``: left before its end, it is cancelled.
    Iteration raises ``EngineGoneError`` where the engine ended before the answer did,
    ``AnswerError`` where the engine says why it does not answer, and ``DeadlineError`` where it
    took too long.
    """

    def __init__(self, way: _Way, until: float | None, end: Callable[[], None]) -> None:
        self._way = way
        self._until = until
        self._end = end
        self._loop = asyncio.get_running_loop()

    async def asend(self, _: None) -> Told:
        """As iteration."""
        return await self.__anext__()

    async def athrow(self, kind: Any, value: Any = None, traceback: Any = None) -> Told:
        """Leave it."""
        self.close()
        return await super().athrow(kind, value, traceback)

    async def __anext__(self) -> Told:
        way = self._way
        if way.left:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout_at(self._until):
                one = await way.said.get()
        except TimeoutError as exc:
            raise DeadlineError(self._until) from exc
        if "error" in one:
            way.end = "error"
            way.close()
            if one["kind"] == "EngineGoneError":
                raise EngineGoneError(one["error"])
            error = AnswerError(one["error"], one["kind"])
            if not error.mistaken:
                events.ANSWER_FAILED.emit(error=error.kind, reason=str(error))
            raise error
        for watcher in way.watchers:
            watcher.told(one)
        if "finish" in one:
            way.end = one["finish"].get("stop_reason", "done").lower()  # images have none
            way.close()
        return one

    def end(self) -> None:
        """Have it end where it is: what is told from now on has its ``finish`` soon."""
        if not self._way.left:
            self._end()

    def close(self) -> None:
        """Have no more of it; what is not finished is cancelled.  May be called again."""
        self._way.close()

    async def aclose(self) -> None:
        """As :meth:`close`, for ``aclosing``."""
        self.close()

    def __del__(self) -> None:
        # A response whose client went away before its first line is dropped, and never closed.
        if not self._way.left:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all with it
                self._loop.call_soon_threadsafe(self._way.close)


class Answers:
    """
    All answers on their way.

    Attributes:
        most: how many may be, those that wait among them.
        coming: how many are being prepared, whose room is kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.coming = 0
        self._keys = itertools.count(1)
        self._open: dict[int, _Way] = {}

    def __len__(self) -> int:
        return len(self._open)

    def expect_room(self, count: int) -> None:
        """
        Check that so many more may wait.

        Raises:
            BusyError: too many requests wait.
            UsageError: they are more than may ever wait.
        """
        if count > self.most:
            msg = f"these are {count} answers at once; supported: {self.most}, as --sequences and "
            msg += "--queue of the server have it"
            raise UsageError(msg)
        there = len(self._open) + self.coming
        if there + count > self.most:
            msg = (
                f"{there} requests are being answered or wait, and {self.most} may: try again later"
            )
            raise BusyError(msg)

    def add(
        self,
        asked: Asked,
        leave: Callable[[int, Leaving], None],
        watches: Sequence[Watch] = (),
        until: float | None = None,
    ) -> tuple[int, Answer]:
        """
        Register an answer.

        Args:
            asked: what the process is told.
            leave: is called with its key where it is left before its end, or is to end.
            watches: make who watches it.
            until: when it must have ended, by the event loop's clock; None for any time.

        Returns:
            Its key, and the answer.
        """
        key = next(self._keys)

        def left(finished: bool) -> None:
            del self._open[key]
            if not finished:
                leave(key, "cancel")

        way = self._open[key] = _Way(left, [watch(asked) for watch in watches])
        return key, Answer(way, until, lambda: leave(key, "end"))

    def say(self, key: int, one: Told) -> None:
        """Let an answer have a token; nothing where it was left meanwhile."""
        way = self._open.get(key)
        if way is not None:
            way.said.put_nowait(one)

    def give_up(self, why: str) -> None:
        """End all with an error."""
        for way in self._open.values():
            way.said.put_nowait({"error": why, "kind": "EngineGoneError"})


__all__ = [
    "Answer",
    "AnswerError",
    "Answers",
    "BusyError",
    "DeadlineError",
    "DrainingError",
    "EngineFailedError",
    "EngineGoneError",
    "Until",
    "Watcher",
]
