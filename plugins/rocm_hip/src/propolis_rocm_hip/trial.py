"""
Try a vendor's library in a child process, once: what ends the child would end a worker.

rocBLAS abort()s the process at its first product where it has no machine code for the card, and
MIOpen with it; whether it has, only trying tells.  The answer is kept on disk for as long as the
library, its files, the driver and what the environment says of them stay as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis.plugins.vetting import read_json
from propolis.plugins.vetting import replace_json
from propolis.plugins.vetting import stamp
from propolis_rocm_hip import events
from propolis_rocm_hip.progress import told


if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

FILE: Final = "trials.json"
"""Its name in the folder of caches."""

_KEPT: Final = 64
_DRIVER: Final = Path("/sys/module/amdgpu/version")
_OUTSIDE: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    How a trial ended.

    Attributes:
        ok: it did what it tried.
        reason: what went wrong, in one line; empty where nothing did.
    """

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """
    What is tried.

    Attributes:
        module: what the child runs, as ``python -m`` does.  It exits with 0 where all is well;
            else what it printed last says why not.
        arguments: the child's.
        depends: the files and folders that decide the answer.
        variables: beginnings of the environment variables that do.
        about: tells one answer from another: the architecture.
    """

    module: str
    arguments: tuple[str, ...]
    depends: tuple[Path, ...]
    variables: tuple[str, ...]
    about: str

    @property
    def key(self) -> str:
        """Changes when what decides the answer does."""
        named = (n for n in sorted(os.environ) if n.startswith((*self.variables, "HSA_", "ROCM_")))
        parts = [
            self.module,
            self.about,
            sys.version,
            platform.release(),
            _text(_DRIVER),
            *(stamp(str(path)) for path in self.depends),
            *(f"{name}={os.environ[name]}" for name in named),
        ]
        return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def outcome(trial: Trial, cache: Path, timeout: float) -> Outcome:
    """
    How the trial ended, now or earlier.

    Args:
        trial: what to try.
        cache: the folder of caches.
        timeout: seconds until a child that hangs is ended.
    """
    path, key = cache / FILE, trial.key
    known = _known(path, key)
    if known is not None:
        return known
    with told(
        lambda seconds: events.ROCM_TRYING.emit(
            library=trial.about, seconds=seconds, at_most=timeout
        ),
        lambda seconds: events.ROCM_TRIED.emit(library=trial.about, seconds=seconds),
    ):
        found, lasting = _attempt(trial, timeout)
    if lasting:
        kept = dict(list(_read(path).items())[1 - _KEPT :])
        row = {"about": trial.about, "reason": found.reason}
        with contextlib.suppress(OSError):  # a read-only home costs a child per start
            replace_json(path, {**kept, key: row})
    return found


def forget(cache: Path, libraries: Iterable[str]) -> None:
    """
    Let libraries be tried again, as when probes are asked again.

    Args:
        cache: the folder of caches.
        libraries: the beginnings of what their trials are about.
    """
    known = _read(cache / FILE)
    kept = {key: row for key, row in known.items() if not _about(row).startswith(tuple(libraries))}
    if kept != known:
        with contextlib.suppress(OSError):
            replace_json(cache / FILE, kept)


def _known(path: Path, key: str) -> Outcome | None:
    """How a trial ended, where that still holds."""
    match _read(path).get(key):
        case {"reason": str(reason)}:
            return Outcome(reason == "", reason)
    return None


def _about(row: object) -> str:
    return str(row.get("about", "")) if isinstance(row, dict) else ""


def _attempt(trial: Trial, timeout: float) -> tuple[Outcome, bool]:
    """How the child ends, and whether that holds until something changes."""
    # A file, not a pipe: a process that the library leaves behind keeps a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            # In this process's group: who ends a probe that hangs ends what it tries as well.
            done = subprocess.run(
                [sys.executable, "-P", "-m", trial.module, *trial.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.curdir for p in sys.path)},
            )
        except subprocess.TimeoutExpired:
            reason = f"it gave no answer in {timeout:g} s; `propolis plugins --reprobe` asks again"
            return Outcome(ok=False, reason=reason), True
        except OSError as exc:  # no processes, no memory
            return Outcome(ok=False, reason=f"it cannot be tried: {exc}"), False
        said = _said(output)
    if done.returncode == 0:
        return Outcome(ok=True), True
    if done.returncode < 0:
        number = signal.Signals(-done.returncode)
        ended = Outcome(ok=False, reason=f"it ended the process ({number.name}){said}")
        return ended, number not in _OUTSIDE
    # A plain "no" may be cured by means that we cannot see (a group, memory): ask again.
    return Outcome(ok=False, reason=said.removeprefix(": ") or "it gave no reason"), False


def _said(output: IO[bytes]) -> str:
    """The first line about an error, else the last line."""
    output.seek(0)
    text = output.read().decode(errors="replace")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() and "Fatal Python" not in line]
    chosen: Iterable[str] = wrong[:1] or lines[-1:]
    return "".join(f": {line}" for line in chosen)


def _read(path: Path) -> dict[str, object]:
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


__all__ = ["FILE", "Outcome", "Trial", "forget", "outcome"]
