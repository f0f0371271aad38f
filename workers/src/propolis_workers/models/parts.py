"""Files that are not whole yet: one process at a time goes on with each."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from io import FileIO
from typing import IO
from typing import TYPE_CHECKING
from typing import Final


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Where a disk knows no locks, each process is on its own.
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
# What a disk without hard links answers.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def alone(part: Path) -> Iterator[FileIO]:
    """
    A file to write, or to go on with where a process was killed.

    Raises:
        BlockingIOError: another process is at it, or has just completed it.
        OSError: it cannot be written.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    # Not buffered: what was written is there, whatever ends the process.
    with FileIO(os.open(part, flags, 0o666), "r+b") as out:
        _lock(out, fcntl.LOCK_EX)
        try:
            # Another may have completed it between the two calls.
            same = part.stat().st_ino == os.fstat(out.fileno()).st_ino
        except FileNotFoundError:
            same = False
        if not same:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(part))
        yield out


def is_written(part: Path) -> bool:
    """Whether a process is at it."""
    try:
        with part.open("rb") as file:
            _lock(file, fcntl.LOCK_SH)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def put(part: Path, path: Path, *, overwrite: bool) -> None:
    """
    Have what is whole now appear where it belongs.

    Args:
        part: it.
        path: its place.
        overwrite: whether it may take the place of another file.

    Raises:
        FileExistsError: there is one, and it may not.
    """
    if overwrite:
        part.replace(path)
        return
    try:
        os.link(part, path)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, "another has been written there meanwhile") from None
    except OSError as exc:
        if exc.errno not in _NO_LINKS or path.exists():
            raise
        part.replace(path)
    else:
        part.unlink()


def _lock(file: IO[bytes] | FileIO, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise


__all__ = ["alone", "is_written", "put"]
