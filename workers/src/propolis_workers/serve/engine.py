"""
The engine as the process that serves sees it: another process, watched and started again.

Where that process ends, as by a driver that aborts, the answers that it computed end with an
error, and a new one is started after a pause that grows with each failure. What was in flight
is in core's record of crashes, so the new process leaves that implementation out. One that keeps
ending soon is not started for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Literal
from typing import TypeVar

from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis_workers import events
from propolis_workers.serve import messages


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Awaitable
    from collections.abc import Iterator
    from collections.abc import Mapping

# Seconds before a new process is started, after the first failure, the second and so on.
PAUSES: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# A process that served for so long was not broken from the start.
_SETTLED: Final = 60.0
# Seconds that a process has to end by itself.
_PATIENCE: Final = 10.0
# Seconds that answers on their way wait to be told how it ended.
_SOON: Final = 0.5
# One line may hold the tokens of all sequences.
_LONGEST_LINE: Final = 1 << 26

T = TypeVar("T")
State = Literal["loading", "ready", "restarting", "failed", "stopped"]


class EngineGoneError(PropolisError):
    """The process that computes ended; the request may be made again once it is back."""


class EngineFailedError(EngineGoneError):
    """There is no engine, and none will be started."""


class BusyError(PropolisError):
    """As many requests wait as may."""


class DeadlineError(PropolisError):
    """An answer took longer than it may."""

    def __init__(self) -> None:
        super().__init__("the answer took longer than the request or the server allows")


class AnswerError(PropolisError):
    """
    The engine could not answer a request; the message is its own.

    Attributes:
        kind: the name of its error's class.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class Status:
    """
    How the engine is.

    Attributes:
        state: what it does.
        error: why it is not ready, where something failed.
        done: bytes of the weights that are loaded.
        all: bytes of the weights; 0 before that is known.
        ready: what it said when it was: device, name, context, blocks, seconds.
        now: what it said last of each thing that it tells after a step.
        restarts: how often it was started again.
        since: when it came into this state, by the monotonic clock.
    """

    state: State = "loading"
    error: str = ""
    done: int = 0
    all: int = 0
    ready: dict[str, Any] = field(default_factory=dict)
    now: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    since: float = field(default_factory=time.monotonic)


class Engine:
    """
    Starts the process that computes, and passes requests to it.

    Attributes:
        status: how it is.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        kind: Literal["llm", "sd"] = "llm",
        most_waiting: int = 256,
        stalls: float = 600.0,
    ) -> None:
        """
        Prepare.

        Args:
            config: the settings of the engine's runtime.
            options: what the worker is told: ``most``, answers at once, and what else it takes.
            kind: of the worker.
            most_waiting: requests that may wait beside those that run.
            stalls: seconds without a step, while there are requests, until the process counts
                as hung and is ended.
        """
        self.status = Status()
        self._kind = kind
        self._config = dict(config)
        self._options = dict(options)
        self._most = options["most"] + most_waiting
        self._stalls = stalls
        self._keys = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._changed = asyncio.Condition()
        self._life: asyncio.Task[None] | None = None
        self._heard = time.monotonic()
        self._coming = 0

    @property
    def waiting(self) -> int:
        """Requests that are not finished."""
        return len(self._answers)

    def start(self) -> None:
        """Start the process, and watch it from now on."""
        self._life = asyncio.create_task(self._live())

    async def stop(self) -> None:
        """End the process; answers that are not finished end with an error."""
        self.status = Status("stopped", restarts=self.status.restarts)
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life
        self._give_up("the server is stopping")

    async def changed(self, seconds: float) -> None:
        """Wait for another state, or for progress, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait()

    def expect_room(self, count: int) -> None:
        """
        Check that so many more requests can be answered or may wait.

        Raises:
            EngineGoneError: there is no engine now; says why.
            BusyError: too many requests wait.
            UsageError: they are more than may ever wait.
        """
        status = self.status
        if status.state != "ready":
            why = f": {status.error}" if status.error else ""
            msg = f"the model is not ready ({status.state}){why}"
            raise (EngineFailedError if status.state == "failed" else EngineGoneError)(msg)
        if count > self._most:
            msg = f"these are {count} answers at once; at most {self._most} are given"
            raise UsageError(msg)
        there = len(self._answers) + self._coming
        if there + count > self._most:
            msg = (
                f"{there} requests are being answered or wait, and {self._most} may: "
                f"try again later"
            )
            raise BusyError(msg)

    @contextlib.contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Keep room for so many requests while they are prepared; raises as expect_room."""
        self.expect_room(count)
        self._coming += count
        try:
            yield
        finally:
            self._coming -= count

    async def answer(
        self, asked: Mapping[str, Any], until: float | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """
        What the process says of a request as it comes; the last has ``finish``.

        An iteration that is left cancels the request.

        Args:
            asked: what is wanted.
            until: when it must have ended, by the event loop's clock; None for any time.

        Raises:
            DeadlineError: it had not.
            EngineGoneError: there is no engine now, or it ended before the answer did.
            AnswerError: the engine says why it does not answer.
        """
        key = next(self._keys)
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        if not self._answers:
            self._heard = time.monotonic()  # nothing was due before
        self._answers[key] = told
        finished = False
        try:
            await _before(until, self._say({"do": "add", "key": key, **asked}))
            while not finished:
                one = await _before(until, told.get())
                if "error" in one:
                    finished = True
                    if one["kind"] == "EngineGoneError":
                        raise EngineGoneError(one["error"])
                    raise AnswerError(one["error"], one["kind"])
                finished = "finish" in one
                yield one
        finally:
            del self._answers[key]
            if not finished and self._writer is not None:
                # Without waiting: an engine that hears nothing must not hold whoever leaves it.
                self._writer.write(messages.line({"do": "cancel", "key": key}))

    async def _say(self, message: Mapping[str, Any]) -> None:
        if self._writer is None:
            msg = "the engine ended"
            raise EngineGoneError(msg)
        try:
            self._writer.write(messages.line(message))
            await self._writer.drain()
        except ConnectionError as exc:
            msg = "the engine ended; try again"
            raise EngineGoneError(msg) from exc

    async def _live(self) -> None:
        """As :meth:`_watched`; an error of this very code is said, and ends answers too."""
        try:
            await self._watched()
        except Exception as exc:
            await self._fail(f"the server's watch over the engine failed: {exc!r}")
            raise

    async def _fail(self, why: str) -> None:
        await self._enter("failed", why, restarts=self.status.restarts)
        self._give_up(why)
        with contextlib.suppress(OSError):  # nobody may read the log any more
            events.ENGINE_FAILED.emit(error=why)

    async def _watched(self) -> None:
        """Start the process, listen until it ends, and again."""
        failures = 0
        while True:
            started = time.monotonic()
            try:
                why = await self._once()
            except OSError as exc:
                why = f"the engine cannot be started: {exc}"
            if self.status.state == "failed":  # by its own word: another one would fail likewise
                await self._fail(self.status.error)
                return
            self._give_up(why)
            failures = 1 if time.monotonic() - started > _SETTLED else failures + 1
            if failures > len(PAUSES):
                await self._fail(f"{why}; {failures} times in a row")
                return
            pause = PAUSES[failures - 1]
            await self._enter("restarting", why, restarts=self.status.restarts + 1)
            with contextlib.suppress(OSError):  # nobody may read the log any more
                events.ENGINE_ENDED.emit(error=why, pause=pause)
            await asyncio.sleep(pause)

    async def _once(self) -> str:
        """One process from start to end; says how it ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "propolis_workers.serve.child"]
            path = os.pathsep.join(p or os.curdir for p in map(os.fspath, sys.path))
            process = self._process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE)
            with contextlib.suppress(EngineGoneError):  # it ended at once: its code says why
                load = {"kind": self._kind, "config": self._config, "options": self._options}
                await self._say({"do": "load", **load})
                await self._listen(reader, process)
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            # Before the process has ended, which may take its time: whoever waits is told.
            if self.status.state == "ready":
                await self._enter("restarting", restarts=self.status.restarts)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _SOON)
            self._give_up(_how(process) or "the engine ended")
            how = await self._ended(process)
        return how

    async def _listen(
        self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process
    ) -> None:
        """Hear what the process says until it ends, or says nothing for too long, or nonsense."""
        while True:
            read = asyncio.ensure_future(reader.readline())
            while not (await asyncio.wait({read}, timeout=1.0))[0]:
                if process.returncode is not None:  # its own children may hold the wire
                    read.cancel()
                    return
                quiet = time.monotonic() - self._heard
                if self._answers and self.status.state == "ready" and quiet > self._stalls:
                    read.cancel()
                    self._kill()
                    return
            try:
                said = read.result()
                if not said.endswith(b"\n"):
                    return
                self._heard = time.monotonic()
                await self._hear(json.loads(said))
            except ConnectionError:
                return
            except (ValueError, LookupError, TypeError):  # no JSON, or none of ours
                self._kill()
                return

    async def _hear(self, message: dict[str, Any]) -> None:
        what = message.pop("is")
        if what == "step":
            self.status.now |= message.get("state", {})  # some of it is told now and then
            for one in message["drawn"]:
                told = self._answers.get(one.pop("key"))
                if told is not None:  # it was cancelled meanwhile
                    told.put_nowait(one)
        elif what == "loading":
            self.status.done, self.status.all = message["done"], message["all"]
            async with self._changed:
                self._changed.notify_all()
        elif what == "ready":
            await self._enter("ready", ready=message, restarts=self.status.restarts)
            with contextlib.suppress(OSError):
                events.ENGINE_READY.emit(
                    kind=self._kind, device=message["device"], seconds=message["seconds"]
                )
        else:
            await self._enter("failed", message["error"], restarts=self.status.restarts)

    async def _enter(self, state: State, error: str = "", **rest: Any) -> None:
        self.status = Status(state, error, **rest)
        async with self._changed:
            self._changed.notify_all()

    async def _ended(self, process: asyncio.subprocess.Process) -> str:
        """Wait for the process, not for ever; how it ended."""
        try:
            await asyncio.wait_for(process.wait(), _PATIENCE)
        except TimeoutError:
            self._kill()
            await process.wait()
        return _how(process)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _give_up(self, why: str) -> None:
        """End all answers with an error."""
        for told in self._answers.values():
            told.put_nowait({"error": f"{why}; try again", "kind": "EngineGoneError"})


async def _before(until: float | None, work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout_at(until):
            return await work
    except TimeoutError as exc:
        raise DeadlineError from exc


def _how(process: asyncio.subprocess.Process) -> str:
    """How a process ended; nothing where it has not."""
    code = process.returncode
    if code is None:
        return ""
    if code >= 0:
        return f"the engine ended with exit code {code}"
    try:
        return f"the engine was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the engine was ended by signal {-code}"


__all__ = [
    "AnswerError",
    "BusyError",
    "DeadlineError",
    "Engine",
    "EngineFailedError",
    "EngineGoneError",
    "Status",
]
