"""Children that judge units, watched: what aborts or hangs is one failed unit."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty
from queue import SimpleQueue
from typing import TYPE_CHECKING
from typing import Any

from propolis.conformance.judge import Result
from propolis.errors import PluginError
from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Request:
    """
    What to judge, and how.

    Attributes:
        plugin: its name.
        device: where; None for the first device that it implements ops for.
        seed: of all random numbers.
        quick: leave the random cases out.
        timeout: seconds without a sign of life until a child counts as hung.
        save: folder that keeps the smallest failing case of each unit; None for none.
    """

    plugin: str
    device: str | None = None
    seed: int = 0
    quick: bool = False
    timeout: float = 60.0
    save: str | None = None


class ChildEndedError(Exception):
    """A child died or hung."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


class Child:
    """
    One child process.

    Attributes:
        units: (unit, op) of everything the plugin declares here.
        facts: about the plugin and the device.
    """

    def __init__(self, request: Request) -> None:
        self._timeout = request.timeout
        self._buffer = b""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the child)
        read, write = os.pipe()
        self._channel = read
        path = list(map(os.fspath, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "propolis.conformance.child"],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.curdir for p in path)},
        )
        os.close(write)
        self._send(
            {
                "path": path,
                "answer": write,
                "plugin": request.plugin,
                "device": request.device,
                "seed": request.seed,
                "quick": request.quick,
                "save": request.save,
            },
        )
        try:
            hello = self._receive()
        except ChildEndedError as exc:
            self.close()
            msg = f"plugin {request.plugin} cannot be judged: loading it {exc}"
            raise PluginError(msg) from exc
        if "refused" in hello:
            self.close()
            raise (UsageError if hello["exit_code"] == 2 else PluginError)(hello["refused"])
        self.units: list[tuple[str, str]] = [(u, op) for u, op in hello["units"]]
        self.facts: dict[str, Any] = hello["facts"]

    def judge(self, unit: str) -> Result:
        """
        The result of one unit.

        Raises:
            ChildEndedError: never; a dead child's unit is a failed result, and the
                child is of no further use then (see ``usable``).
        """
        case = ""
        try:
            self._send(unit)
            while True:
                said = self._receive()
                if "result" in said:
                    return Result(**said["result"])
                case = said["case"]
        except ChildEndedError as exc:
            self.close()
            return Result(unit, "failed", 1, check=exc.check, message=str(exc), case=case)

    @property
    def usable(self) -> bool:
        """Whether it can judge another unit."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, and those it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()
        if self._channel >= 0:
            os.close(self._channel)
            self._channel = -1
            self._said.close()

    def _send(self, value: Any) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        try:
            stdin.write(json.dumps(value).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return  # it died; the answer will say how

    def _receive(self) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(self._timeout):
                    msg = f"gave no sign of life for {self._timeout:g} s"
                    raise ChildEndedError("hung", msg)
                more = os.read(self._channel, 65536)
                if not more:
                    raise ChildEndedError("aborted", self._end())
                self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _end(self) -> str:
        """How the process ended, and what it said last."""
        code = self._process.wait()
        try:
            how = f"killed the process ({signal.Signals(-code).name})" if code < 0 else ""
        except ValueError:
            how = f"killed the process (signal {-code})"
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 2000))
        lines = [s for s in self._said.read().decode(errors="replace").splitlines() if s.strip()]
        last = f": {lines[-1].strip()}" if lines else ""
        return (how or f"ended the process with exit code {code}") + last


def run(
    request: Request,
    ops: Sequence[str] = (),
    *,
    workers: int | None = None,
    progress: Callable[[Result], None] = lambda _: None,
) -> tuple[list[Result], dict[str, Any]]:
    """
    Judge a plugin.

    Args:
        request: the plugin, and how.
        ops: only these ops, or units (``"add[f32]"``); all when empty.
        workers: how many processes; one a core when None.
        progress: told each result as it comes.

    Returns:
        The results in the order the plugin declares its ops, and facts about it.

    Raises:
        UsageError: there is no such plugin, or it implements no such op here.
        PluginError: it cannot be loaded.
    """
    first = Child(request)
    try:
        names = _chosen(first.units, ops, request.plugin)
    except UsageError:
        first.close()
        raise
    queue: SimpleQueue[str] = SimpleQueue()
    for name in names:
        queue.put(name)
    found: dict[str, Result] = {}

    def work(child: Child | None) -> None:
        try:
            while True:
                try:
                    name = queue.get_nowait()
                except Empty:
                    return
                if child is None or not child.usable:
                    child = Child(request)
                found[name] = child.judge(name)
                progress(found[name])
        finally:
            if child is not None:
                child.close()

    count = max(1, min(workers or len(os.sched_getaffinity(0)), len(names)))
    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(work, c) for c in (first, *(None,) * (count - 1))]:
            done.result()
    return [found[name] for name in names], first.facts


def _chosen(units: Sequence[tuple[str, str]], ops: Sequence[str], plugin: str) -> list[str]:
    unknown = [op for op in ops if not any(op in unit for unit in units)]
    if unknown:
        known = ", ".join(dict.fromkeys(op for _, op in units))
        msg = f"{plugin} does not implement {', '.join(unknown)} here; it implements: {known}"
        raise UsageError(msg)
    return [name for name, op in units if not ops or op in ops or name in ops]
