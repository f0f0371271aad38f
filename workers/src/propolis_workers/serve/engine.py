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

from propolis import Config
from propolis.plugins.crash_file import note_hung
from propolis_workers import events
from propolis_workers.serve import TOKENS
from propolis_workers.serve import messages
from propolis_workers.serve.answers import Answer
from propolis_workers.serve.answers import AnswerError
from propolis_workers.serve.answers import Answers
from propolis_workers.serve.answers import BusyError
from propolis_workers.serve.answers import DeadlineError
from propolis_workers.serve.answers import DrainingError
from propolis_workers.serve.answers import EngineFailedError
from propolis_workers.serve.answers import EngineGoneError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis_workers.serve.answers import Leaving
    from propolis_workers.serve.answers import Watch

# Seconds before a new process is started, after the first failure, the second and so on.
PAUSES: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# A process that was ready for so long was not broken from the start.
_SETTLED: Final = 60.0
# Seconds that a process has to end by itself.
_PATIENCE: Final = 10.0
# Seconds that a process that hangs has to write down where.
_LAST_WORDS: Final = 5.0
# Seconds that answers on their way wait to be told how it ended.
_SOON: Final = 0.5
# Seconds between two looks at whether all is answered.
_TICK: Final = 0.05
# One line may hold the tokens of all sequences.
_LONGEST_LINE: Final = 1 << 26

T = TypeVar("T")
State = Literal["loading", "ready", "restarting", "failed", "stopped"]


@dataclass(slots=True)
class Status:
    """
    How the engine is.

    Attributes:
        state: what it does.
        error: why it is not ready, where something failed.
        done: bytes of the weights that are loaded.
        all: bytes of the weights; 0 before that is known.
        ready: what it said when it was: device, name and seconds, and of a language model dtype,
            kv_type, context, blocks and window_blocks.
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
        draining: the server is about to end, and takes no new requests.
        refusal: the class of the error for which it could not be loaded at all; else nothing.
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
        self.draining = False
        self.refusal = ""
        self._was_ready = False
        self._kind = kind
        self._config = dict(config)
        self._options = dict(options)
        self._answers = Answers(options["most"] + most_waiting)
        self._stalls = stalls
        self._watches: list[Watch] = []
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._changed = asyncio.Condition()
        self._life: asyncio.Task[None] | None = None
        self._heard = time.monotonic()
        self._why = ""  # what the process said of its end
        self._warming = False  # the process computes its first step, and no request's
        self._patience = _PATIENCE
        self._ready: float | None = None  # when this process was

    @property
    def waiting(self) -> int:
        """Requests that are not finished."""
        return len(self._answers)

    def start(self) -> None:
        """Start the process, and watch it from now on."""
        self._life = asyncio.create_task(self._live())

    async def drain(self, seconds: float) -> None:
        """
        Take nothing new, and finish what there is.

        Args:
            seconds: until answers that are not finished end with an error.
        """
        self.draining = True
        async with self._changed:
            self._changed.notify_all()
        end = time.monotonic() + seconds
        while self._answers and time.monotonic() < end:  # noqa: ASYNC110  (seldom, and short)
            await asyncio.sleep(_TICK)
        if self._answers:
            self._answers.give_up("the server is stopping")
            self._patience = 0.0  # it had its time

    async def stop(self) -> None:
        """End the process; answers that are not finished end with an error."""
        if self.status.state != "ready":
            self.kill()  # while it loads it hears nothing
        self.status = Status("stopped", restarts=self.status.restarts)
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life
        self._answers.give_up("the server is stopping")

    async def changed(self, seconds: float) -> None:
        """Wait for another state, or for progress, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait()

    def expect_room(self, count: int) -> None:
        """
        Check that so many more requests can be answered or may wait.

        Raises:
            EngineGoneError: there is no engine now, or the server is about to end; says why.
            BusyError: too many requests wait.
            UsageError: they are more than may ever wait.
        """
        if self.draining:
            msg = "the server is about to end: it takes no new requests"
            raise DrainingError(msg)
        status = self.status
        if status.state != "ready" or self._writer is None:
            why = f": {status.error}" if status.error else ""
            msg = f"the model is not ready ({status.state}){why}"
            raise (EngineFailedError if status.state == "failed" else EngineGoneError)(msg)
        self._answers.expect_room(count)

    @contextlib.contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Keep room for so many requests while they are prepared; raises as expect_room."""
        self.expect_room(count)
        self._answers.coming += count
        try:
            yield
        finally:
            self._answers.coming -= count

    def answer(self, asked: Mapping[str, Any], until: float | None = None) -> Answer:
        """
        Ask for an answer, which is computed, or waits, from now on.

        Args:
            asked: what is wanted.
            until: when it must have ended, by the event loop's clock; None for any time.

        Raises:
            EngineGoneError, BusyError: as :meth:`expect_room`.
        """
        self.expect_room(1)
        if not self._answers:
            self._heard = time.monotonic()  # nothing was due before
        key, answer = self._answers.add(asked, self._leave, self._watches, until)
        # Nobody waits until it is sent: how much can lie here is bounded as requests are.
        self._send({"do": "add", "key": key, **asked})
        return answer

    def watch(self, watch: Watch) -> None:
        """Let somebody see each answer from now on: called with what was asked."""
        self._watches.append(watch)

    def _leave(self, key: int, how: Leaving) -> None:
        self._send({"do": how, "key": key})

    def _send(self, message: Mapping[str, Any]) -> None:
        """Say something to the process, where there is one; its end is noticed elsewhere."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(messages.line(message))

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _live(self) -> None:
        """As :meth:`_watched`; an error of this very code is said, and ends answers too."""
        try:
            await self._watched()
        except Exception as exc:
            await self._fail(f"the server's watch over the engine failed: {exc!r}")
            raise

    async def _fail(self, why: str) -> None:
        await self._enter("failed", why, restarts=self.status.restarts)
        self._answers.give_up(f"{why}; try again")
        with contextlib.suppress(OSError):  # nobody may read the log any more
            events.ENGINE_FAILED.emit(error=why)

    async def _watched(self) -> None:
        """Start the process, listen until it ends, and again."""
        failures = 0
        while True:
            try:
                why = await self._once()
            except OSError as exc:
                why = f"the engine cannot be started: {exc}"
            if self.status.state == "failed":  # by its own word: another one would fail likewise
                await self._fail(self.status.error)
                return
            self._answers.give_up(f"{why}; try again")
            served = 0.0 if self._ready is None else time.monotonic() - self._ready
            failures = 1 if served > _SETTLED else failures + 1
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
        self._ready = None
        ours, theirs = socket.socketpair()
        self._why, self._warming = "", False
        with theirs:
            command = [sys.executable, "-P", "-m", "propolis_workers.serve.child"]
            path = os.pathsep.join(p or os.curdir for p in map(os.fspath, sys.path))
            # The process that computes runs plugins' code, which need not know the token.
            environ = {k: v for k, v in os.environ.items() if k not in TOKENS}
            process = self._process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**environ, "PYTHONPATH": path},
            )
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE)
            load = {"kind": self._kind, "config": self._config, "options": self._options}
            self._send({"do": "load", **load})
            await self._listen(reader, process)
        finally:
            self._hang_up()
            # Before the process has ended, which may take its time: whoever waits is told.
            if self.status.state == "ready":
                await self._enter("restarting", restarts=self.status.restarts)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _SOON)
            self._answers.give_up(f"{self._why or _how(process) or 'the engine ended'}; try again")
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
                due = self._warming or (self._answers and self.status.state == "ready")
                if due and quiet > self._stalls:
                    read.cancel()
                    await self._end_hung(process)
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
                self.kill()
                return

    async def _end_hung(self, process: asyncio.subprocess.Process) -> None:
        """End a process that does nothing: as one that aborts, so that what hangs is recorded."""
        self._why = (
            f"the engine computed nothing for {self._stalls:g} s, though it had to: it was ended"
        )
        note_hung(Config(**self._config).cache_dir, process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGABRT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _LAST_WORDS)
        self.kill()

    async def _hear(self, message: dict[str, Any]) -> None:
        what = message.pop("is")
        if what == "step":
            self.status.now |= message.get("state", {})  # some of it is told now and then
            for one in message["drawn"]:
                self._answers.say(one.pop("key"), one)
        elif what == "loading":
            self.status.done, self.status.all = message["done"], message["all"]
            async with self._changed:
                self._changed.notify_all()
        elif what == "ready":
            self._ready = time.monotonic()
            self._was_ready, self._warming = True, False
            await self._enter("ready", ready=message, restarts=self.status.restarts)
            with contextlib.suppress(OSError):
                events.ENGINE_READY.emit(
                    kind=self._kind, device=message["device"], seconds=message["seconds"]
                )
        elif what == "warming":
            self._warming = True
        elif what == "preparing":
            pass  # it was heard, and so is no engine that hangs
        elif what == "lost":
            self._why = str(message["error"])
        else:
            self.refusal = "" if self._was_ready else message["kind"]
            await self._enter("failed", message["error"], restarts=self.status.restarts)

    async def loaded(self, restarts: int = 0) -> Status:
        """
        Wait until the model is there, or is not to be had; how things stand then.

        Args:
            restarts: how often the process was started again before, at least.
        """

        def known() -> bool:
            there = self.status.state == "ready" and self.status.restarts >= restarts
            return there or self.status.state in ("failed", "stopped")

        async with self._changed:
            await self._changed.wait_for(known)
        return self.status

    async def _enter(self, state: State, error: str = "", **rest: Any) -> None:
        self.status = Status(state, error, **rest)
        async with self._changed:
            self._changed.notify_all()

    async def _ended(self, process: asyncio.subprocess.Process) -> str:
        """Wait for the process, not for ever; how it ended."""
        try:
            await asyncio.wait_for(process.wait(), self._patience)
        except TimeoutError:
            self.kill()
            await process.wait()
        return self._why or _how(process)

    def kill(self) -> None:
        """End the process at once; what it computed is lost."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


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
    "DrainingError",
    "Engine",
    "EngineFailedError",
    "EngineGoneError",
    "Status",
]
