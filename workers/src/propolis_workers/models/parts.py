"""Files and folders that one process at a time writes, and files that are not whole yet."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import secrets
import time
from contextlib import contextmanager
from contextlib import suppress
from io import FileIO
from typing import IO
from typing import TYPE_CHECKING
from typing import Final


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAMED: Final = 40  # characters of a name that stay as they are in that of a part
_OLD: Final = 10.0  # seconds within which a part may be one that is about to be locked


@contextmanager
def alone(part: Path) -> Iterator[FileIO]:
    """
    A file to go on with, where a process before was cut or killed.

    Raises:
        BlockingIOError: another process is at it, or has just completed it.
        OSError: it cannot be written.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    # Not buffered: what was written is there, whatever ends the process.
    with FileIO(os.open(part, flags, 0o666), "r+b") as out:
        _lock(out.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another may have completed it between the two calls.
        if not _is(part, out.fileno()):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(part))
        yield out


@contextmanager
def whole(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """
    A file to write, which takes its place when the ``with`` block ends well.

    Until then it lies beside; one that a killed process left there is removed.

    Args:
        path: its place.
        overwrite: whether it may take that of another file.

    Raises:
        BlockingIOError: another process is writing the same.
        FileExistsError: there is another file meanwhile.
        OSError: it cannot be written.
    """
    name = path.name
    if len(name) > _NAMED:
        name = name[:_NAMED] + hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    part = path.with_name(f".{name}.{secrets.token_hex(4)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o666), "wb") as file:
        try:
            if _lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                _expect_alone(part, f".{glob.escape(name)}.*.part")
            yield file
            file.flush()
            _put(part, path, overwrite=overwrite)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def used(folder: Path) -> Iterator[None]:
    """
    Have a folder, which is made, stay: nobody is alone in it within.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with _opened(folder) as number:
            _lock(number, fcntl.LOCK_SH)
            if _is(folder, number):  # else who was alone in it has removed it
                yield
                return


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """
    Use a folder while nobody else does.

    Raises:
        BlockingIOError: another process uses it.
        OSError: it cannot be opened.
    """
    with _opened(folder) as number:
        _lock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)


def _lock(number: int, kind: int) -> bool:
    """Whether it is locked now; some disks know no locks, and there each is on its own."""
    try:
        fcntl.flock(number, kind)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _is(path: Path, number: int) -> bool:
    """Whether an open file still lies there."""
    try:
        return os.path.samestat(path.stat(), os.fstat(number))
    except FileNotFoundError:
        return False


def _expect_alone(own: Path, pattern: str) -> None:
    """Remove parts that nobody writes any more, and raise BlockingIOError where somebody does."""
    for other in own.parent.glob(pattern):
        # One of somebody else's is left alone, as is one that is gone meanwhile.
        with suppress(FileNotFoundError, PermissionError):
            if other != own:
                with other.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if time.time() - other.stat().st_mtime > _OLD:
                        other.unlink()


def _put(part: Path, path: Path, *, overwrite: bool) -> None:
    """Have what is whole now appear in its place; raises FileExistsError."""
    if not overwrite:
        try:
            os.link(part, path)
        except FileExistsError:
            raise
        except OSError:
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        else:
            part.unlink()
            return
    part.replace(path)


__all__ = ["alone", "alone_in", "used", "whole"]
