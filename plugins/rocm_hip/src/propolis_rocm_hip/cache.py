"""
Code objects that hipRTC compiled, kept on disk; several processes may use it at once.

An entry is one file: a line of JSON that says what it is, with the checksum of the code
object that follows.  It is written aside and renamed, so a reader sees all of it or
nothing; a lock by key makes processes that want the same object compile it once.  When
the folder grows too large, what was not used for longest goes first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import asdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.files import replacing
from propolis.preparing import preparing
from propolis_rocm_hip import events


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from pathlib import Path

    from propolis import Config

FOLDER: Final = "kernels"
"""The cache's name in the folder of caches."""

_SUFFIX: Final = ".co"
_LOCKS: Final = 16


@dataclass(frozen=True, slots=True)
class Key:
    """
    What an entry is found by.

    Attributes:
        module: the module's name.
        arch: the architecture.
        digest: of everything that decides the code: source, headers, flags, compiler,
            architecture.
        compiler: which one, for people.
    """

    module: str
    arch: str
    digest: str
    compiler: str

    @property
    def filename(self) -> str:
        """The entry's file."""
        return f"{self.module}-{self.arch}-{self.digest}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One file of the cache.

    Attributes:
        path: the file.
        nbytes: its size.
        used: when it was last used, seconds since the epoch.
        key: what it holds; None when it is damaged.
        problem: what is wrong with it; empty when nothing is.
    """

    path: Path
    nbytes: int
    used: float
    key: Key | None
    problem: str


class CodeCache:
    """
    The cache in one folder.

    Args:
        folder: where; made on first use.
        limit: bytes that all entries may take together.
    """

    def __init__(self, folder: Path, limit: int = 512 << 20) -> None:
        self.folder = folder
        self.limit = limit

    @classmethod
    def of(cls, config: Config) -> CodeCache:
        """The cache that the settings name."""
        return cls(config.cache_dir / FOLDER, config.kernel_cache_mib << 20)

    def get(self, key: Key, make: Callable[[], bytes]) -> bytes:
        """
        The code object for a key, made now if nobody has it yet.

        A cache that cannot be read or written costs time, nothing else.

        Args:
            key: the key.
            make: makes the code object; what it raises is passed on.
        """
        path = self.folder / key.filename
        found = self._read(path, key)
        if found is not None:
            return found
        with self._locked(key):
            found = self._read(path, key)  # another process may have been quicker
            if found is not None:
                return found
            code = make()
            try:
                self._write(path, key, code)
                self.gc()
            except OSError as exc:
                events.ROCM_CACHE_NOT_WRITTEN.emit(path=str(path), reason=str(exc))
            return code

    def entries(self, *, verify: bool = False) -> list[Entry]:
        """
        All files of the cache, those used last first.

        Args:
            verify: read all of each, and compare the checksum.
        """
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                stat = path.stat()
                key, problem = _inspect(path, verify=verify)
            except FileNotFoundError:  # another process removed it just now
                continue
            except OSError as exc:
                key, problem = None, str(exc)
            found.append(Entry(path, stat.st_size, stat.st_mtime, key, problem))
        return sorted(found, key=lambda entry: (-entry.used, entry.path.name))

    def gc(self, limit: int | None = None) -> list[Entry]:
        """Remove what was not used for longest until the rest fits; returns what went."""
        limit = self.limit if limit is None else limit
        room = limit
        gone = []
        for entry in self.entries():
            room -= entry.nbytes
            if room < 0:
                entry.path.unlink(missing_ok=True)
                gone.append(entry)
        return gone

    def remove(self, entry: Entry) -> None:
        """Remove one entry."""
        entry.path.unlink(missing_ok=True)

    def _read(self, path: Path, key: Key) -> bytes | None:
        """What a file holds for the key; a damaged one is removed."""
        try:
            head, code = _split(path.read_bytes())
        except OSError:  # absent, most often; what cannot be read is made again
            return None
        except ValueError as exc:
            self._distrust(path, str(exc))
            return None
        if head["key"] != asdict(key):
            self._distrust(path, "it is for another key")
            return None
        if hashlib.sha256(code).hexdigest() != head["sha256"]:
            self._distrust(path, "its checksum is wrong")
            return None
        with suppress(OSError):  # read-only: it only looks older than it is
            os.utime(path)
        return code

    def _distrust(self, path: Path, reason: str) -> None:
        events.ROCM_CACHE_ENTRY_DAMAGED.emit(path=str(path), reason=reason)
        with suppress(OSError):
            path.unlink()

    def _write(self, path: Path, key: Key, code: bytes) -> None:
        head = {"key": asdict(key), "sha256": hashlib.sha256(code).hexdigest(), "size": len(code)}
        with replacing(path, private=True, durable=True) as file:
            file.write(json.dumps(head).encode() + b"\n" + code)

    @contextmanager
    def _locked(self, key: Key) -> Iterator[None]:
        """
        Hold the lock of a key; its file is never removed, so that all processes see one.

        Where there can be no lock, two processes may both compile: the second rename wins.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            number = int(key.digest[:8], 16) % _LOCKS
            file = (self.folder / f".lock-{number:02d}").open("wb")
        except OSError:
            yield
            return
        with file:
            with preparing("what another process compiles"):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _inspect(path: Path, *, verify: bool) -> tuple[Key | None, str]:
    """What a file says it holds, and what is wrong with it."""
    with path.open("rb") as file:
        line = file.readline(1 << 16)
        code = file.read() if verify else b""
    try:
        head, _ = _split(line)
        key = Key(**head["key"])
    except (ValueError, TypeError) as exc:
        return None, str(exc)
    if verify and hashlib.sha256(code).hexdigest() != head["sha256"]:
        return key, "its checksum is wrong"
    return key, ""


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The head and the code of an entry; ValueError where there is no head."""
    line, newline, code = data.partition(b"\n")
    if not newline:
        raise ValueError("it is cut short")
    try:
        head = json.loads(line)
    except RecursionError:
        head = None
    if not isinstance(head, dict) or not {"key", "sha256"} <= head.keys():
        raise ValueError("it does not say what it holds")
    return head, code


__all__ = ["FOLDER", "CodeCache", "Entry", "Key"]
