"""Pull a model: each file goes on where a pull before was cut, and is checked when whole."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Protocol

from propolis.wording import size_of
from propolis_workers.models import hub
from propolis_workers.models.parts import alone
from propolis_workers.models.parts import used
from propolis_workers.models.picking import CONFIG
from propolis_workers.models.picking import pick
from propolis_workers.models.problems import PullError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

    from propolis_workers.models.names import ModelName
    from propolis_workers.models.store import Local
    from propolis_workers.models.store import Store

_CHUNK = 1 << 20


class Watcher(Protocol):
    """Who is told how a pull goes."""

    def say(self, line: str) -> None:
        """Something happened."""

    def progress(self, done: int, total: int) -> None:
        """So many bytes of the model are here."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """
    What a pull ended with.

    Attributes:
        model: that is here now.
        fetched: bytes that came over the network.
        revision: the commit of the repository.
    """

    model: Local
    fetched: int
    revision: str


def pull(name: ModelName, store: Store, watcher: Watcher) -> Pulled:
    """
    Get a model, or what is missing of it.

    Args:
        name: which.
        store: where it goes.
        watcher: told how it goes.

    Raises:
        ModelError: there is no such model.
        PullError: the network, the hub or the disk refuses; what came stays for the next pull.
    """
    repository = hub.look_up(name.repository, watcher.say)
    names = pick(name, repository.files)
    files = [repository.files[file] for file in names]
    total = sum(file.nbytes for file in files)
    done = fetched = 0
    with _disk(store.folder), used(store.path(repository.name, "")):
        missing = [file for file in files if not _is_here(repository, file, store)]
        done = total - sum(file.nbytes for file in missing)
        hub.expect_given(repository, missing)
        _expect_room(repository, missing, store)
        for file in missing:
            begun = done

            def count(here: int, begun: int = begun) -> None:
                watcher.progress(begun + here, total)

            fetched += _fetch(repository, file, store, watcher, count)
            done += file.nbytes
        if CONFIG in names:
            for gone in store.others(repository.name, names):
                what = f"{gone.name}, which {repository.name} does not have any more"
                watcher.say(f"removing {what}")
                gone.unlink(missing_ok=True)
    path = store.path(repository.name, names[0])
    model = next((one for one in store.models() if path in one.files), None)
    if model is None:
        msg = f"{path} was removed meanwhile: pull it again"
        raise PullError(msg)
    return Pulled(model, fetched, repository.revision)


def _is_here(repository: hub.Repository, file: hub.RemoteFile, store: Store) -> bool:
    """Whether a file was pulled before, and is what the hub has now."""
    target = store.path(repository.name, file.name)
    if not target.is_file() or target.stat().st_size != file.nbytes:
        return False
    return _checksum(target, file) == file.checksum


def _expect_room(repository: hub.Repository, files: list[hub.RemoteFile], store: Store) -> None:
    needed = 0
    for file in files:
        part = store.part(store.path(repository.name, file.name), file.checksum)
        needed += file.nbytes - (part.stat().st_size if part.exists() else 0)
    there = store.folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed > free:
        msg = f"{repository.name} needs {size_of(needed)} more, and {size_of(free)} are free in "
        msg += f"{store.folder}: free some, or set PROPOLIS_MODELS_DIR to a folder elsewhere"
        raise PullError(msg)


def _fetch(
    repository: hub.Repository,
    file: hub.RemoteFile,
    store: Store,
    watcher: Watcher,
    count: Callable[[int], None],
) -> int:
    """Get one file; the bytes that came."""
    target = store.path(repository.name, file.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = store.part(target, file.checksum)
    with _alone(part) as out:
        begun = out.seek(0, os.SEEK_END)
        if begun > file.nbytes:
            begun = out.truncate(0)
            out.seek(0)
        rest = f", {size_of(begun)} of it are here" if begun else ""
        watcher.say(f"pulling {file.name} ({size_of(file.nbytes)}{rest})")
        count(begun)
        writer = _Writer(out, file, count)
        hub.download(repository, file, writer, watcher.say)
        out.flush()
        os.fsync(out.fileno())
        if out.tell() != file.nbytes:
            msg = f"{file.name} of {repository.name} ended after {size_of(out.tell())} of "
            msg += f"{size_of(file.nbytes)}: pull again, which goes on there"
            raise PullError(msg)
        if _checksum(part, file) != file.checksum:
            part.unlink()
            msg = f"{file.name} of {repository.name} came with another checksum than the hub says, "
            msg += "and was deleted: pull again, and where that fails too, from another network"
            raise PullError(msg)
        part.replace(target)
    # Of another version, which nobody asks for again.
    for stale in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        stale.unlink(missing_ok=True)
    return writer.came


class _Writer:
    """A file that grows to a known size and no further; tells how far it is, and what came."""

    def __init__(self, out: FileIO, file: hub.RemoteFile, count: Callable[[int], None]) -> None:
        self._out, self._file, self._count = out, file, count
        self.came = 0

    def write(self, chunk: bytes) -> int:
        """Take bytes, as a file does."""
        here = self._out.tell() + len(chunk)
        if here > self._file.nbytes:
            msg = f"{self._file.name} goes on after the {self._file.nbytes} bytes that the hub "
            msg += "says it has: pull again, and where that fails too, from another network"
            raise PullError(msg)
        rest = memoryview(chunk)
        while rest:
            rest = rest[self._out.write(rest) :]
        self._count(here)
        self.came += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        """Where it is, as a file says it."""
        return self._out.tell()

    def seek(self, offset: int) -> int:
        """Go elsewhere, as a file does."""
        return self._out.seek(offset)

    def truncate(self) -> int:
        """Forget what follows, as a file does."""
        return self._out.truncate()


@contextmanager
def _alone(part: Path) -> Iterator[FileIO]:
    """A file to go on with, for one process at a time."""
    try:
        with alone(part) as out:
            yield out
    except BlockingIOError:
        msg = f"another `propolis models pull` is at {part.name}: wait until it has ended"
        raise PullError(msg) from None


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """What the disk refuses, in one line."""
    try:
        yield
    except OSError as exc:
        msg = f"{exc.filename or folder} cannot be written ({exc.strerror or exc}): make room or "
        msg += "permission there, or set PROPOLIS_MODELS_DIR to a folder elsewhere; what came "
        msg += "stays, and a pull goes on there"
        raise PullError(msg) from exc


def _checksum(path: Path, file: hub.RemoteFile) -> str:
    """A file's checksum, of the kind that the hub gives for it."""
    if len(file.checksum) == 64:
        digest = hashlib.sha256()
    else:
        # What git hashes of a file that is small enough to lie in the repository itself.
        digest = hashlib.sha1(f"blob {file.nbytes}\0".encode(), usedforsecurity=False)
    with path.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


__all__ = ["Pulled", "Watcher", "pull"]
