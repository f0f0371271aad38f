"""
The process that computes: ``python -m propolis_workers.serve.child FD``.

It says and hears lines of JSON on the socket FD (see messages.py); what plugins print is not
part of that. An error of one answer ends that answer; an error of a step ends the answers that
were part of it; a device that is lost ends the process, and whoever started it starts another.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

from propolis.errors import DeviceLostError
from propolis.errors import PropolisError
from propolis.preparing import prepared
from propolis_workers.serve import messages


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from typing import BinaryIO

    from propolis_workers.llm.answer import Finish

# Seconds between two lines about loading.
_PROGRESS = 0.2
# Seconds between two that tell of what is compiled, and for which one piece of that is waited.
_PREPARING = 0.5
_LONGEST = 1800.0

Told = dict[str, Any]


class Worker(Protocol):
    """What computes in the process: a language model, or one that draws."""

    def load(
        self,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[int, int], None],
    ) -> Told:
        """Load the model; returns what is said of it once it is ready."""

    def warm(self) -> None:
        """Compute something for nobody, where that is soon done; raises as :meth:`load`."""

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""

    def add(self, message: Mapping[str, Any]) -> None:
        """Take a request; raises PropolisError where it cannot be answered."""

    def cancel(self, key: int) -> Finish | None:
        """Forget a request; one that is not there is no error.  How a text went."""

    def step(self, tell: Callable[[list[Told]], None], hear: Callable[[], None]) -> None:
        """Do some work and tell of it; long work hears from time to time what was said."""

    def state(self) -> Told:
        """How it is, for whoever looks."""


class Child:
    """A worker, and the wire to whoever serves."""

    def __init__(self, wire: socket.socket) -> None:
        self._heard: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._wire = wire
        self._file: BinaryIO = wire.makefile("rb")
        self._left = False
        self._telling = threading.Lock()
        wire.set_inheritable(False)  # what it starts must not keep the wire open

    def run(self) -> None:
        """Load, then answer until the wire is closed."""
        first = self._file.readline()
        if not first:
            return
        asked = json.loads(first)
        worker = _worker(asked["kind"])
        started = time.monotonic()
        try:
            ready = worker.load(asked["config"], asked["options"], self._progress())
        except PropolisError as exc:
            self._say({"is": "failed", "error": str(exc), "kind": type(exc).__name__})
            return
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            self._say({"is": "warming"})
            try:
                worker.warm()
            except DeviceLostError:
                raise
            except PropolisError as exc:
                self._say({"is": "failed", "error": str(exc), "kind": type(exc).__name__})
                return
            seconds = round(time.monotonic() - started, 3)
            self._say({"is": "ready", **ready, "seconds": seconds})
            threading.Thread(target=self._listen, daemon=True).start()
            while self._take(worker):
                worker.step(
                    lambda told: self._tell(worker, told),
                    lambda: self._hear(worker),
                )
        except DeviceLostError as exc:
            self._say({"is": "lost", "error": str(exc)})
            sys.exit(1)

    def _progress(self) -> Callable[[int, int], None]:
        said = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said > _PROGRESS or done == total:
                said = now
                self._say({"is": "loading", "done": done, "all": total})

        return progress

    def _take(self, worker: Worker) -> bool:
        """Hear what was said; waits where there is nothing to do. Whether to go on."""
        self._hear(worker)
        while not (worker.busy or self._left):
            self._tell(worker, [])  # whoever asks is told how it is now, with nothing to do
            self._handle(worker, self._heard.get())
            self._hear(worker)
        return not self._left

    def _hear(self, worker: Worker) -> None:
        """Handle what was said meanwhile."""
        with contextlib.suppress(queue.Empty):
            while not self._left:
                self._handle(worker, self._heard.get_nowait())

    def _handle(self, worker: Worker, message: Told | None) -> None:
        if message is None:
            self._left = True
        elif message["do"] in ("cancel", "end"):
            key = message["key"]
            finish = worker.cancel(key)
            if message["do"] == "end" and finish is not None:
                self._say({"is": "step", "drawn": [messages.ended(key, finish)]})
        else:
            try:
                worker.add(message)
            except PropolisError as exc:
                self._say({"is": "step", "drawn": [messages.failed(message["key"], exc)]})

    def _tell(self, worker: Worker, told: list[Told]) -> None:
        self._say({"is": "step", "drawn": told, "state": worker.state()})

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionResetError):  # the server is gone
            for said in self._file:
                self._heard.put(json.loads(said))
        self._heard.put(None)

    def _watch(self) -> None:
        """Tell of what takes long before a step can go on: else it would count as hung."""
        with contextlib.suppress(OSError):  # the server is gone
            while True:
                time.sleep(_PREPARING)
                found = prepared()
                if found is not None and time.monotonic() - found.since < _LONGEST:
                    self._say({"is": "preparing", "what": found.what})

    def _say(self, message: Mapping[str, Any]) -> None:
        with self._telling:
            self._wire.sendall(messages.line(message))


def _worker(kind: str) -> Worker:
    """Each imports what it needs, and only that."""
    if kind == "sd":
        from propolis_workers.serve.painter import Painter  # noqa: PLC0415

        return Painter()
    from propolis_workers.serve.writer import Writer  # noqa: PLC0415

    return Writer()


def main() -> None:
    """Answer on the socket whose number is the argument."""
    # Its end is the wire's: signals to a whole group are for the server, which finishes first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server is gone
        Child(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
