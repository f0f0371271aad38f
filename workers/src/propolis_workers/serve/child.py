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

from propolis.config import Config
from propolis.dispatch import DispatchTable
from propolis.errors import DeviceLostError
from propolis.errors import PropolisError
from propolis.runtime import Runtime
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Drawn
from propolis_workers.llm.session import LLM
from propolis_workers.serve import messages


if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

# Seconds between two lines about loading.
_PROGRESS = 0.2


class Child:
    """The engine, and the wire to whoever serves."""

    def __init__(self, wire: socket.socket) -> None:
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._wire = wire
        self._file: BinaryIO = wire.makefile("rb")
        wire.set_inheritable(False)  # what it starts must not keep the wire open

    def run(self) -> None:
        """Load, then answer until the wire is closed."""
        first = self._file.readline()
        if not first:
            return
        asked = json.loads(first)
        try:
            engine, runtime = self._load(asked["config"], asked["options"])
        except PropolisError as exc:
            self._say({"is": "failed", "error": str(exc), "kind": type(exc).__name__})
            return
        threading.Thread(target=self._listen, daemon=True).start()
        self._serve(engine, runtime)

    def _load(
        self, config: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[BatchEngine, Runtime]:
        started = said = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said > _PROGRESS or done == total:
                said = now
                self._say({"is": "loading", "done": done, "all": total})

        runtime = Runtime.start(Config(**config))
        llm = LLM.load(runtime=runtime, progress=progress, tokens=options["context"])
        engine = BatchEngine(
            llm,
            context=options["context"],
            most=options["most"],
            tokens=options["tokens"],
        )
        self._say(
            {
                "is": "ready",
                "device": llm.model.device.id,
                "name": llm.model.device.properties.name,
                "context": engine.capacity,
                "blocks": engine.blocks.count,
                "seconds": round(time.monotonic() - started, 3),
            }
        )
        return engine, runtime

    def _serve(self, engine: BatchEngine, runtime: Runtime) -> None:
        while True:
            if not self._take(engine, runtime):
                return
            try:
                told = engine.step()
            except DeviceLostError:
                raise  # only a new process can use it again
            except PropolisError as exc:
                told = [Drawn(key, None, error=exc) for key in engine.abandon()]
            state = self._state(engine, runtime)
            self._say({"is": "step", "drawn": list(map(messages.drawn, told)), "state": state})

    def _take(self, engine: BatchEngine, runtime: Runtime) -> bool:
        """Hear what was said; waits where there is nothing to do. Whether to go on."""
        handled = False
        while True:
            if handled and not engine.busy and self._heard.empty():
                handled = False  # whoever asks is told how it is now
                self._say({"is": "step", "drawn": [], "state": self._state(engine, runtime)})
            try:
                message = self._heard.get(block=not engine.busy)
            except queue.Empty:
                return True
            if message is None:
                return False
            handled = True
            if message["do"] == "cancel":
                engine.cancel(message["key"])
                continue
            try:
                engine.add(message["key"], messages.request(message))
            except PropolisError as exc:
                told = messages.drawn(Drawn(message["key"], None, error=exc))
                self._say({"is": "step", "drawn": [told]})

    def _state(self, engine: BatchEngine, runtime: Runtime) -> dict[str, Any]:
        device = runtime.device(runtime.config.device)
        placement = DispatchTable.of(device).placement.as_dict()
        return {
            "running": len(engine.scheduler.running),
            "waiting": len(engine.scheduler.waiting),
            "preempted": engine.scheduler.preempted,
            "blocks_taken": engine.blocks.taken,
            "blocks_kept": engine.blocks.kept,
            "fallbacks": placement["fallbacks"],
        }

    def _listen(self) -> None:
        for said in self._file:
            self._heard.put(json.loads(said))
        self._heard.put(None)

    def _say(self, message: Mapping[str, Any]) -> None:
        self._wire.sendall(messages.line(message))


def main() -> None:
    """Answer on the socket whose number is the argument."""
    # Its end is the wire's: signals to a whole group are for the server, which finishes first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server is gone
        Child(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
