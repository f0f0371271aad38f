"""Files that appear whole or not at all, whoever reads them meanwhile."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from typing import TYPE_CHECKING


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
        dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
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


__all__ = ["expanded", "replace_text", "replacing"]
