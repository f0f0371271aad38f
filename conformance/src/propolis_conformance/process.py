"""A child process that answers in lines of JSON, and whose death or silence is an answer too."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any
from typing import Final


# Seconds that loading plugins may take, however short a call is allowed to be.
START: Final = 60.0
# Seconds that an idle child has to end by itself, so that tools in it (coverage) do too.
_PATIENCE: Final = 5.0
# Bytes of what a child printed.
_SHOWN: Final = 2000


class ChildEndedError(Exception):
    """A child died or hung."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


class ChildProcess:
    """
    A process that runs a module of ours, asked by lines of JSON on its standard input.

    The first line has ``path``, for ``sys.path``, and ``answer``, the descriptor on which it
    answers: what plugins print goes elsewhere.  An answer with ``busy`` is not its last.

    Attributes:
        said: what it printed, once it is closed.
    """

    def __init__(self, module: str, patience: float) -> None:
        """
        Start it.

        Args:
            module: what to run.
            patience: seconds without a sign of life until it counts as hung.
        """
        self._patience = patience
        self._buffer = b""
        self._idle = False
        self.said = ""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the child)
        read, write = os.pipe()
        self._channel = read
        path = list(map(os.fspath, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.curdir for p in path)},
        )
        os.close(write)
        self.send(path=path, answer=write)

    @property
    def usable(self) -> bool:
        """Whether it can be asked again."""
        return self._channel >= 0 and not self._ended()

    def _ended(self) -> bool:
        """Whether the process has; it keeps its number, and its group's, until it is reaped."""
        if self._process.returncode is not None:
            return True
        how = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self._process.pid, how) is not None

    def close(self) -> None:
        """End the process, and those it started: it may leave by itself where it can."""
        if self._channel < 0:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._reap(_PATIENCE if self._idle else 0.0)
        os.close(self._channel)
        self._channel = -1
        self.said = self._printed()
        self._said.close()

    def kill(self) -> None:
        """End the process, and those it started, now; whoever waits for its answer goes on."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self, patience: float) -> int:
        """End the process group; how the process itself ended, which may take ``patience``."""
        until = time.monotonic() + patience
        while not self._ended() and time.monotonic() < until:
            time.sleep(0.005)
        self.kill()
        return self._process.wait()

    def send(self, **fields: Any) -> None:
        """Ask; a child that died by now is found out when it is to answer."""
        self._idle = False
        stdin = self._process.stdin
        if stdin is None:
            return
        try:
            stdin.write(json.dumps(fields).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return  # it died; the answer will say how

    def receive(self, patience: float | None = None) -> dict[str, Any]:
        """
        What it says next.

        Args:
            patience: seconds to wait, infinity for any; those of the child when None.

        Raises:
            ChildEndedError: it died, or said nothing for so long.
        """
        patience = patience or self._patience
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(None if patience == math.inf else patience):
                    msg = f"gave no sign of life for {patience:g} s"
                    raise ChildEndedError("hung", msg)
                more = os.read(self._channel, 65536)
                if not more:
                    raise ChildEndedError("aborted", self._end())
                self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        self._idle = not found.get("busy", False)
        return found

    def _printed(self) -> str:
        """What it printed before it ended, the last of it where that is much."""
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - _SHOWN))
        return self._said.read().decode(errors="replace")

    def _end(self) -> str:
        """How the process ended, and what it said last."""
        code = self._reap(_PATIENCE)
        try:
            how = f"killed the process ({signal.Signals(-code).name})" if code < 0 else ""
        except ValueError:
            how = f"killed the process (signal {-code})"
        lines = [line for line in self._printed().splitlines() if line.strip()]
        last = f": {lines[-1].strip()}" if lines else ""
        return (how or f"ended the process with exit code {code}") + last


__all__ = ["ChildEndedError", "ChildProcess"]
