"""
What a process that a native library ends leaves behind, and reading it.

A process that runs plugins' implementations has a file in ``running/`` of the cache folder
that :mod:`faulthandler` writes the Python stack into if a fatal signal comes.  Whose frames'
names are numbers (see :mod:`propolis.inflight`), the lines above tell.  It costs nothing
until then.

The file is locked for as long as its process lives, so nobody has to believe a process
number: one that can be locked is a dead process's.  It is removed when the process ends;
what a killed process left, and what a crashed one did, is by the next that looks.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import json
import os
import re
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis import inflight
from propolis.files import replace_text


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping


FOLDER: Final = "running"
HUNG: Final = "{pid}.hung"
"""In that folder: a process that somebody else ended, as it did nothing."""

REPORT: Final = "crash.txt"
"""In the cache folder: the files of the crashes that were found last, as they were."""

_FATAL: Final = "Fatal Python error: "
_THREAD: Final = re.compile(r"^(Current thread|Thread) 0x", re.MULTILINE)
_FRAME: Final = re.compile(r'^  File ".*", line \S+ in (.*)$', re.MULTILINE)
_SETTLED: Final = 0  # the number of no implementation
_PATIENCE: Final = 1.0  # seconds; another start reads a few files in milliseconds


class Ended(NamedTuple):
    """
    A call that a process ended at, or may have.

    Attributes:
        what: what :func:`introduce` was told.
        how: it ended the process.
        sure: it ran when the signal came, rather than before it.
    """

    what: Mapping[str, Any]
    how: str
    sure: bool


@dataclass(frozen=True, slots=True)
class Crash:
    """
    The end of a process.

    Attributes:
        pid: its number.
        calls: what it was running.
        reason: how it ended.
        report: where the stack can be read.
    """

    pid: int
    calls: tuple[Ended, ...]
    reason: str
    report: Path


class _Running:
    """The file of this process."""

    def __init__(self, cache_dir: Path) -> None:
        self.folder = cache_dir / FOLDER
        self.lines: list[bytes] = []
        self.path: Path | None = None
        self.fd = -1

    def open(self) -> None:
        """
        Let faulthandler write into a new file.

        Raises:
            OSError: the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            fd, name = tempfile.mkstemp(".txt", f"{os.getpid()}-", self.folder)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_nlink:  # else another start saw it before it was locked
                    break
            except OSError:
                Path(name).unlink(missing_ok=True)
                os.close(fd)
                raise
            os.close(fd)
        _write(fd, b"".join(self.lines))
        faulthandler.enable(fd)
        self.fd, self.path = fd, Path(name)

    def close(self) -> None:
        """A process that ends as it should leaves nothing."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def reopen(self) -> None:
        """A forked process has a file of its own: what it inherited is its parent's."""
        if self.path is None:
            return
        inherited, self.path = self.fd, None
        try:
            self.open()
        except OSError:
            faulthandler.disable()
        os.close(inherited)


_running: _Running | None = None


def introduce(cache_dir: Path, number: int, what: Mapping[str, Any]) -> None:
    """
    Say what a number in the name of a frame stands for, in case that this process crashes.

    The first call opens the file; a folder that cannot be written is no error.  Where
    faulthandler is on already (``python -X faulthandler``, pytest) whoever wants its stack
    elsewhere gets it there, and there is no file.

    Args:
        cache_dir: the first one is the process's.
        number: see :func:`propolis.inflight.read`.
        what: JSON.
    """
    global _running  # noqa: PLW0603  (faulthandler has one file in a process)
    if _running is None:
        _running = _Running(cache_dir)
        if not faulthandler.is_enabled():
            with contextlib.suppress(OSError):
                _running.open()
                atexit.register(_running.close)
                os.register_at_fork(after_in_child=_running.reopen)
    if _running.path is not None:
        line = json.dumps({"number": number, "what": what}).encode() + b"\n"
        _running.lines.append(line)
        _write(_running.fd, line)


def settled() -> None:
    """Say that this process waits for no call any more."""
    if _running is not None and _running.path is not None:
        line = json.dumps({"number": _SETTLED, "what": {}}).encode() + b"\n"
        _running.lines.append(line)
        _write(_running.fd, line)


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk
        os.write(fd, data)


def collect(cache_dir: Path) -> list[Crash]:
    """The crashes since somebody last asked; forgets them, save for the report."""
    folder = cache_dir / FOLDER
    found: list[tuple[str, str, bool]] = []
    with contextlib.suppress(OSError), _alone(folder):
        for path in sorted(folder.glob("[0-9]*-*.txt")):
            with contextlib.suppress(OSError):
                text = _left_by_the_dead(path)
                if text is not None and _FATAL in text:
                    found.append((path.name, text, _was_hung(path)))
    if not found:
        return []
    report = cache_dir / REPORT
    with contextlib.suppress(OSError):
        replace_text(report, "\n".join(text for _, text, _ in found))
    return [_crash(name, text, report, hung=hung) for name, text, hung in found]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """
    One process at a time.

    Raises:
        OSError: there is no such folder, or others take too long.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _left_by_the_dead(path: Path) -> str | None:
    """
    What a file holds, which is removed; None where its process lives.

    Raises:
        OSError: it cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        text = file.read()
        with contextlib.suppress(OSError):  # then it is told again
            path.unlink()
        return text


def note_hung(cache_dir: Path, pid: int) -> None:
    """
    Say that a process is about to be ended by a signal for doing nothing.

    What it is in then need not be at fault: a launch, too, may wait for one before it.
    """
    with contextlib.suppress(OSError):
        (cache_dir / FOLDER / HUNG.format(pid=pid)).touch()


def _was_hung(path: Path) -> bool:
    note = path.with_name(HUNG.format(pid=path.name.partition("-")[0]))
    was = note.exists()
    note.unlink(missing_ok=True)
    return was


def _crash(name: str, text: str, report: Path, *, hung: bool = False) -> Crash:
    head, _, tail = text.partition(_FATAL)
    introduced = _introduced(head)
    serialised = _SETTLED not in introduced
    signal, _, stacks = tail.partition("\n")
    starts = [match.start() for match in _THREAD.finditer(stacks)]
    threads = [stacks[a:b] for a, b in pairwise([*starts, len(stacks)])]
    # None is current where a thread of the library's own got the signal.
    current = [thread for thread in threads if thread.startswith("Current")]
    where = "in no plugin's op"
    if "Bus error" in signal:  # of memory that is mapped: the fault of a file, not of who reads it
        threads, current = [], []
        where = "where a mapped file, as of weights, became shorter or could not be read"
    calls: dict[int, Ended] = {}
    for thread in current or threads:
        frames = filter(None, map(inflight.read, _FRAME.findall(thread)))
        frame = next(frames, None)
        if frame is not None and frame.number in introduced:
            how = f"ended the process ({signal})"
            if frame.waiting:
                how = f"was launched last when a wait for the device ended the process ({signal})"
            elif not current:
                how = f"was running when a thread that is not Python's ended the process ({signal})"
            elif hung:
                how = f"was running when a process that did nothing was ended ({signal})"
            alone = serialised and bool(introduced[frame.number].get("serialised"))
            sure = not frame.waiting and (alone or (bool(current) and not hung))
            calls[frame.number] = Ended(introduced[frame.number], f"{how}: {frame.shapes}", sure)
    pid = name.partition("-")[0]
    return Crash(
        int(pid) if pid.isdigit() else 0, tuple(calls.values()), f"ended ({signal}) {where}", report
    )


def _introduced(text: str) -> dict[int, Mapping[str, Any]]:
    found = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            found[said["number"]] = said["what"]
    return found


__all__ = ["Crash", "Ended", "collect", "introduce", "note_hung", "settled"]
