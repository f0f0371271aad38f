"""
Heartbeats: telling a hive every half minute that this worker lives, and how it is.

The one part of a server that connects to anybody: to the URL it was given, following no
redirect and no proxy.  It runs in a thread of its own, so a hive that hangs keeps nobody waiting.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from dataclasses import asdict
from dataclasses import dataclass
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from urllib.parse import urlsplit

from propolis import __version__
from propolis.errors import UsageError
from propolis_workers import events


if TYPE_CHECKING:
    from propolis_workers.serve.engine import Engine

PATH: Final = "/v1/worker-heartbeat"
EVERY: Final = 30.0
"""Seconds between two heartbeats; a hive misses a worker after three."""

# Seconds until it is tried again, after the first failure, the second and so on; then as usual.
_AGAIN: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
# Seconds that a hive has for each step of an exchange.
_PATIENCE: Final = 5.0
# Seconds between two looks at whether the state is another one.
_LOOK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Worker:
    """
    What a hive knows a worker by.

    Attributes:
        id: of this worker alone.
        model_id: of the model, as the hive calls it.
        port: it listens at.
        device: it was told to use; the one it uses is told once that is known.
    """

    id: str
    model_id: str
    port: int
    device: str


class Heartbeat:
    """
    Says so, from :meth:`start` until :meth:`stop`.

    Attributes:
        url: where it is said.
    """

    def __init__(self, hive: str, worker: Worker, engine: Engine, *, every: float = EVERY) -> None:
        """
        Prepare.

        Args:
            hive: ``http://host:port``, with a path in front of the protocol's where it has one.
            worker: who says it.
            engine: whose state is said.
            every: seconds.

        Raises:
            UsageError: the URL is none that can be asked.
        """
        self._secure, self._host, self._port, self._path = _parts(hive)
        self.url = hive.rstrip("/") + PATH
        self._worker = worker
        self._engine = engine
        self._every = every
        # Its own: the module's is for whoever seeds it.
        self._random = random.Random()  # noqa: S311  (no secret)
        self._stopped = threading.Event()
        self._failing = False

    def start(self) -> None:
        """Begin; the first is sent at once."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """End; one that is on its way is not waited for."""
        self._stopped.set()

    def message(self) -> dict[str, Any]:
        """What is sent now."""
        status = self._engine.status
        worker = asdict(self._worker)
        worker["device"] = status.ready.get("device", self._worker.device)
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "worker": {
                **worker,
                "status": self._state(),
                "implementation": "propolis",
                "version": __version__,
            },
            "timestamp": now,
        }

    def _state(self) -> str:
        """In the words of the protocol: one that takes nothing new is busy."""
        health = self._health()
        if health != "ready":
            return health
        return "busy" if self._engine.waiting or self._engine.draining else "ready"

    def _health(self) -> str:
        state = self._engine.status.state
        if state in ("failed", "stopped"):
            return "error"
        return "ready" if state == "ready" else "loading"

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            said = self._health()
            why = self._send()
            self._note(why)
            failures = 0 if why is None else failures + 1
            pause = self._every
            if 0 < failures <= len(_AGAIN):
                pause = min(pause, _AGAIN[failures - 1])
            # Many workers that a hive lost at once do not come back at once.
            self._wait(pause * self._random.uniform(0.9, 1.0), said)

    def _wait(self, seconds: float, said: str) -> None:
        """Until then, or until the engine is in another state than was said."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._stopped.wait(min(left, _LOOK)):
                return
            if not self._failing and self._health() != said:
                return

    def _send(self) -> str | None:
        """Send one; why it did not arrive, or None."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_PATIENCE)
        body = json.dumps(self.message())
        try:
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as exc:
            return str(exc) or type(exc).__name__
        finally:
            connection.close()
        if 200 <= status < 300:
            return None
        redirect = ", a redirect, which is not followed" if 300 <= status < 400 else ""
        return f"the answer is {status}{redirect}"

    def _note(self, why: str | None) -> None:
        """Say when it begins to fail, and when that is over."""
        if why is not None and not self._failing:
            events.HIVE_LOST.emit(url=self.url, error=why)
        elif why is None and self._failing:
            events.HIVE_BACK.emit(url=self.url)
        self._failing = why is not None


def _parts(hive: str) -> tuple[bool, str, int | None, str]:
    """Whether a URL is of HTTPS, its host, its port and the path that is asked."""
    try:
        url = urlsplit(hive)
        port = url.port
    except ValueError as exc:
        msg = f"--hive-url {hive!r} is no URL: {exc}"
        raise UsageError(msg) from exc
    plain = hive.isascii() and hive.isprintable() and " " not in hive
    if url.scheme not in ("http", "https") or not url.hostname or not plain:
        msg = (
            f"--hive-url {hive!r} is not supported; supported: http://host:port, https://host:port"
        )
        raise UsageError(msg)
    if url.username is not None or url.query or url.fragment:
        msg = f"--hive-url of {url.hostname!r} has a user, a query or a fragment; give none of them"
        raise UsageError(msg)
    return url.scheme == "https", url.hostname, port, url.path.rstrip("/") + PATH


__all__ = ["Heartbeat", "Worker"]
