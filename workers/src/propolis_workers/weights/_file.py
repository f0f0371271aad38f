"""
What all weight files share: a read-only memory map, tensors in it, one-line errors.

The map is private to this process and read-only, but the bytes stay the file's.
Whoever replaces a model must write a new file and rename it: a file that shrinks
while it is mapped ends the process with SIGBUS, which no reader can catch.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from typing import Final
from typing import Protocol
from typing import TypeAlias
from typing import runtime_checkable

import numpy as np
import numpy.typing as npt

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis.wording import near_matches


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from propolis.dtypes import DType


Bytes: TypeAlias = npt.NDArray[np.uint8]
StrPath: TypeAlias = "str | os.PathLike[str]"

DOWNLOAD: Final = "the file is damaged or was made to harm: get it again from a source you trust"
INCOMPLETE: Final = "the download is incomplete or the file damaged: get it again"

PICKLE_SUFFIXES: Final = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_PICKLE_REMEDY: Final = (
    "loading a pickle runs whatever code its author put in it, so Propolis never does; "
    "supported: safetensors, GGUF; convert it to safetensors on a machine you can lose"
)
# What people most often have in place of the weights, by the first bytes.
_FOREIGN: Final = (
    (b"version https://git-lfs", "a Git LFS pointer, not the weights", "run `git lfs pull`"),
    (b"<!doctype", "a web page, not the weights", "download the file itself"),
    (b"<html", "a web page, not the weights", "download the file itself"),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """
    Where a tensor lies in its file, and how to read it.

    Attributes:
        name: the tensor's name in the file.
        dtype: its element type.
        shape: its dimensions, row-major (GGUF stores them the other way round).
        offset: its first byte, counted from the start of the file.
        nbytes: its size in bytes.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Weights(Protocol):
    """
    Named tensors.

    Attributes:
        tensors: what there is, by name.
    """

    tensors: Mapping[str, TensorInfo]

    def data(self, name: str) -> Bytes:
        """
        The bytes of a tensor: a read-only 1-D view of a file's map, or of what was made of one.

        Raises:
            ModelError: there is no such tensor, or its file is closed.
        """


@runtime_checkable
class WeightSource(Weights, Protocol):
    """Named tensors in memory-mapped files, never copied; also a context manager."""

    def close(self) -> None:
        """Let go of the map; it is freed with the last view that ``data`` gave out."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


_READ_TOGETHER: Final = 8
"""Tensors of which somebody may not have read the first when he asks for the last."""


class MappedSource(WeightSource):
    """A weight source whose every tensor is a slice of some mapped file."""

    def __init__(self, path: Path, tensors: Mapping[str, tuple[TensorInfo, MappedFile]]) -> None:
        self.path: Path = path
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: info for name, (info, _) in tensors.items()},
        )
        self._views: dict[str, Bytes] | None = {
            name: file.view(info.offset, info.nbytes) for name, (info, file) in tensors.items()
        }
        self._places = {name: (f, info.offset, info.nbytes) for name, (info, f) in tensors.items()}
        self._read: deque[str] = deque(maxlen=_READ_TOGETHER)

    def data(self, name: str) -> Bytes:
        """
        The bytes of a tensor: a read-only 1-D view of the map, never a copy.

        Models are read some tensors at a time, as those that are joined: the ones before no longer
        count as memory of the process.  Who still looks at one finds it in the system's cache of
        files.

        Raises:
            ModelError: there is no such tensor, or the source is closed.
        """
        if self._views is None:
            raise unusable(self.path, f"closed, so tensor {show(name)} is gone", "open it again")
        view = self._views.get(name)
        if view is None:
            near = near_matches(name, self._views)
            hint = f"did you mean {', '.join(map(show, near))}?" if near else ""
            count = len(self._views)
            remedy = hint or f"it holds {count} tensors, none with a similar name"
            raise unusable(self.path, f"no tensor {show(name)}", remedy)
        for before in self._read:
            if before != name:
                file, offset, nbytes = self._places[before]
                file.release(offset, nbytes)
        self._read.append(name)
        return view

    def release(self) -> None:
        """The same of all that was read, once a model is there."""
        for file in {file for file, _, _ in self._places.values()}:
            file.release(0, file.size)

    def close(self) -> None:
        """Let go of the map; it is freed with the last view that ``data`` gave out."""
        # mmap.close() would refuse while views live: reference counts decide.
        self._views = None
        self._places = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {show_path(self.path)}: {len(self.tensors)} tensors>"


class MappedFile:
    """
    A regular, non-empty file, mapped read-only.

    Attributes:
        path: its path, as given.
        size: its size in bytes.
        buffer: the map.
    """

    __slots__ = ("_bytes", "buffer", "path", "size")

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self._bytes: Bytes = np.frombuffer(buffer, np.uint8)

    @classmethod
    def open(cls, path: StrPath) -> MappedFile:
        """
        Map a file.

        Args:
            path: the file.

        Raises:
            ModelError: it is missing, may not be read or is a folder.
            FileFormatError: it is empty, or a pipe or device.
        """
        path = Path(path)
        try:
            # A pipe with no writer would block a plain open for ever.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return cls(path, _map(path, fd))
            finally:
                os.close(fd)
        except FileNotFoundError as error:
            raise unusable(path, "there is no such file", "check the path") from error
        except PermissionError as error:
            remedy = "make it readable for the user who runs the worker"
            raise unusable(path, "no permission to read it", remedy) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            short = getattr(error, "errno", None) == errno.ENOMEM
            remedy = "give the process more memory" if short else "check the path"
            raise unusable(path, f"cannot be opened ({show(reason)})", remedy) from error

    def view(self, offset: int, nbytes: int) -> Bytes:
        """A read-only view of ``nbytes`` bytes from ``offset`` on."""
        return self._bytes[offset : offset + nbytes]

    def release(self, offset: int, nbytes: int) -> None:
        """Let go of the pages that lie in a part; whoever reads them again gets them again."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # not everywhere
            return
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > first:
            with suppress(OSError):  # of pages that are locked
                self.buffer.madvise(mmap.MADV_DONTNEED, first, end - first)

    def refuse_foreign(self, *, magic: bytes = b"", suffixes: Iterable[str] = ()) -> None:
        """
        Refuse pickles and name other kinds of files that stand in for weights.

        Args:
            magic: first bytes of the kind that the caller reads; they settle it.
            suffixes: file name endings that are refused whatever the file holds.

        Raises:
            UnsupportedModelError: it is a pickle.
            FileFormatError: it is something else that is easily recognised.
        """
        head = self.buffer[:64]
        if magic and head.startswith(magic):
            return
        # A safetensors header of 640 bytes begins like a pickle.
        if self.path.suffix.lower() in suffixes or (_is_pickle(head) and not _is_safetensors(head)):
            raise pickle_refused(self.path)
        if magic and _is_safetensors(head):
            remedy = "open it as one (propolis_workers.weights.SafetensorsFolder)"
            raise damaged(self.path, "a safetensors file", remedy)
        if head.startswith(b"GGUF"):
            remedy = "open it as one (propolis_workers.weights.GGUFFile)"
            raise damaged(self.path, "a GGUF file", remedy)
        for start, found, remedy in _FOREIGN:
            if head.lower().startswith(start):
                raise damaged(self.path, found, remedy)


def _map(path: Path, fd: int) -> mmap.mmap:
    """Map an open file once it is known to be a regular one with bytes in it."""
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise unusable(path, "is a folder, not a file", "give the path of the weight file in it")
    if not stat.S_ISREG(status.st_mode):
        raise damaged(path, "is a pipe or device, not a regular file", "give a weight file")
    if status.st_size == 0:
        raise damaged(path, "is empty (0 bytes)", INCOMPLETE)
    return mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)


def _is_safetensors(head: bytes) -> bool:
    """Whether a file begins with a plausible header length and a JSON object."""
    return head[4:9] == b"\0\0\0\0{"


def _is_pickle(head: bytes) -> bool:
    """Whether a file begins as a zip (torch.save) or as a pickle of protocol 2 and later."""
    return head.startswith((b"PK\3\4", b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"))


def show(text: str, limit: int = 80) -> str:
    """Text from a file or a user, quoted, escaped and short enough for one line."""
    return repr(text if len(text) <= limit else f"{text[: limit - 3]}...")


def show_path(path: Path) -> str:
    """A path as people type it, escaped only where it would break the line."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def damaged(path: Path, found: str, remedy: str = DOWNLOAD) -> FileFormatError:
    """The error for a file that is not what it claims to be."""
    return FileFormatError(f"{show_path(path)}: {found}; {remedy}")


def unsupported(path: Path, found: str, remedy: str) -> UnsupportedModelError:
    """The error for a sound file that holds something no worker runs."""
    return UnsupportedModelError(f"{show_path(path)}: {found}; {remedy}")


def unusable(path: Path, found: str, remedy: str) -> ModelError:
    """The error for all that is wrong around a file rather than in it."""
    return ModelError(f"{show_path(path)}: {found}; {remedy}")


def pickle_refused(path: Path) -> UnsupportedModelError:
    """The error for every pickle, by name or by content."""
    return unsupported(path, "a Python pickle (PyTorch checkpoint)", _PICKLE_REMEDY)
