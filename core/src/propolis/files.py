"""Files that appear whole or not at all, whoever reads them meanwhile."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import contextmanager
from contextlib import suppress
from pathlib import Path
from typing import IO
from typing import TYPE_CHECKING

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: Path, *, private: bool = False, durable: bool = False) -> Iterator[IO[bytes]]:
    """
    A file to write, which takes the place of ``path`` when the ``with`` block ends well.

    Args:
        path: in a folder that exists.  It stays as it is where the block raises.
        private: let nobody else read it; else as the process's umask says.
        durable: have it on the disk before it appears.

    Raises:
        OSError: it cannot be written there.
    """
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part", delete=False
    ) as file:
        part = Path(file.name)
        try:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if not private:
                part.chmod(0o666 & ~_umask())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def replace_text(path: Path, text: str, *, private: bool = True) -> None:
    """
    Write a file of text as a whole; its folder is made.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, private=private) as file:
        file.write(text.encode(errors="surrogateescape"))


def write_answer(path: Path, answer: str | bytes) -> None:
    """
    Write a file that a command was told to: the old one stays where the new one cannot be whole.

    The new one has its mode, and a link stays one.  What cannot be replaced without becoming
    another thing is written over, and may be cut where that fails: a file of several names, of
    somebody else or in a folder that cannot be written, and what is open, as ``/dev/stdout`` is.

    Raises:
        UsageError: it cannot be written.
    """
    target, old = Path(os.path.realpath(path)), None
    data = answer if isinstance(answer, bytes) else answer.encode(errors="surrogateescape")
    opened = path.absolute().as_posix().startswith(("/dev/fd/", "/dev/std", "/proc/"))
    try:
        with suppress(FileNotFoundError):
            old = path.stat()
        own = not opened and (old is None or (_is_ours(old) and os.access(target, os.W_OK)))
        if not own or not os.access(target.parent, os.W_OK):
            path.write_bytes(data)
            return
        with replacing(target, private=old is not None) as file:
            if old is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            file.write(data)
    except OSError as exc:
        msg = f"{path} cannot be written: {exc.strerror}"
        raise UsageError(msg) from exc


def _is_ours(file: os.stat_result) -> bool:
    """Whether it is a file of one name, with the owner of those that are made, and no output."""
    outputs = (os.path.samestat(file, os.fstat(number)) for number in (1, 2))
    usual = (1, os.geteuid(), os.getegid()) == (file.st_nlink, file.st_uid, file.st_gid)
    return usual and stat.S_ISREG(file.st_mode) and not any(outputs)


def expanded(path: object) -> Path:
    """
    A path with the home of a user in place of ``~``; as it is where there is no such user.

    Raises:
        ValueError: it is no path, or empty, which would be the folder that a command runs in.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        msg = f"{path!r} is no path: name a folder, or leave the setting out"
        raise ValueError(msg)
    return Path(os.path.expanduser(path))  # noqa: PTH111  pathlib's raises for such a user


def _umask() -> int:
    """The process's: Linux says it, elsewhere it is set anew, which other threads see."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except OSError:
        pass  # procfs is hidden
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


__all__ = ["expanded", "replace_text", "replacing", "write_answer"]
