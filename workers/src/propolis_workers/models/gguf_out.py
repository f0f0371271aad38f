"""
Writing GGUF files, version 3.

The ``gguf`` library is not used for it: it decodes what it copies, and stops at vocabularies whose
tokens are no UTF-8; and it would bring three more distributions.  Tests read these files with it.
"""

from __future__ import annotations

import struct
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_workers.models.parts import whole
from propolis_workers.weights.gguf import DEFAULT_ALIGNMENT
from propolis_workers.weights.gguf import MAGIC


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping
    from collections.abc import Sequence

    import numpy as np

    from propolis.dtypes import DType

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64 = 4, 5, 6, 7, 8, 9, 10, 11
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_WHERE: Final = ("general.alignment", "split.")  # of a file's own layout, not of the model


@dataclass(frozen=True, slots=True)
class Entry:
    """
    A tensor to write.

    Attributes:
        name: in the file.
        dtype: its element type there.
        shape: row-major, as everywhere but in the file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        numel = 1
        for size in self.shape:
            numel *= size
        return self.dtype.nbytes(numel)


def write_gguf(
    path: Path,
    pairs: Mapping[str, bytes],
    entries: Sequence[Entry],
    content: Callable[[Entry], Iterator[np.ndarray]],
    *,
    overwrite: bool = True,
) -> int:
    """
    Write a file, which appears when it is whole.

    Args:
        path: of the file.
        pairs: its metadata: key -> type and value, as :func:`encoded` makes them.
        entries: its tensors, in order.
        content: the bytes of each, in pieces.
        overwrite: whether it may take the place of another.

    Returns:
        Bytes written.

    Raises:
        BlockingIOError: another process is writing it.
        FileExistsError: another is there meanwhile.
        OSError: it cannot be written.
    """
    with whole(path, overwrite=overwrite) as file:
        file.write(header(pairs, entries))
        for entry in entries:
            for piece in content(entry):
                file.write(piece.data)
            file.write(bytes(_padding(entry.nbytes)))
        return file.tell()


def header(pairs: Mapping[str, bytes], entries: Sequence[Entry]) -> bytes:
    """All that comes before the first tensor's bytes."""
    raw = bytearray(MAGIC + struct.pack("<IQQ", 3, len(entries), len(pairs)))
    for key, value in pairs.items():
        raw += _text(key) + value
    offset = 0
    for entry in entries:
        raw += _text(entry.name) + struct.pack("<I", len(entry.shape))
        raw += struct.pack(f"<{len(entry.shape)}Q", *reversed(entry.shape))
        raw += struct.pack("<IQ", entry.dtype.ggml_type, offset)
        offset += entry.nbytes + _padding(entry.nbytes)
    return bytes(raw + bytes(_padding(len(raw))))


@contextmanager
def sketched(
    beside: Path,
    pairs: Mapping[str, bytes],
    entries: Sequence[Entry],
    given: Mapping[str, np.ndarray],
) -> Iterator[Path]:
    """
    A file without most of its tensors' bytes, which are a hole: to see what it would say.

    Args:
        beside: the file to write, where there is room for it; other disks may have none.
        pairs: as for :func:`write_gguf`.
        entries: likewise.
        given: the bytes of those tensors that have some.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=beside.parent, prefix=".propolis-") as folder:
        path = Path(folder) / "sketch.gguf"
        with path.open("wb") as file:
            file.write(header(pairs, entries))
            for entry in entries:
                start = file.tell()
                if entry.name in given:
                    file.write(given[entry.name].data)
                file.seek(start + entry.nbytes + _padding(entry.nbytes))
            file.truncate()
        yield path


def encoded(value: object) -> bytes:
    """
    A metadata value with its type, as the format has it.

    Args:
        value: a bool, int, float, str, or a list of one of them.
    """
    kind, raw = _encoded(value)
    return struct.pack("<I", kind) + raw


def pairs_of(raw: Any) -> dict[str, bytes]:
    """
    The metadata of a file as it stands there: key -> type and value.

    Args:
        raw: the bytes of a file that was opened and checked.

    Returns:
        All but what says how that file was laid out.
    """
    (count,) = struct.unpack_from("<Q", raw, 16)
    pairs, at = {}, 24
    for _ in range(count):
        length = struct.unpack_from("<Q", raw, at)[0]
        key = bytes(raw[at + 8 : at + 8 + length]).decode()
        at += 8 + length
        end = _after(raw, at + 4, struct.unpack_from("<I", raw, at)[0])
        if not key.startswith(_WHERE):
            pairs[key] = bytes(raw[at:end])
        at = end
    return pairs


def _after(raw: Any, at: int, kind: int) -> int:
    """Where a value ends."""
    if kind == _STRING:
        return at + 8 + int(struct.unpack_from("<Q", raw, at)[0])
    if kind != _ARRAY:
        return at + _SIZES[kind]
    count: int
    kind, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    if kind in _SIZES:
        return at + count * _SIZES[kind]
    for _ in range(count):
        at = _after(raw, at, kind)
    return at


def _encoded(value: object, *, inside: bool = False) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, str):
        return _STRING, _text(value)
    if isinstance(value, float):
        return _F32, struct.pack("<f", value)
    if isinstance(value, list):
        items = [_encoded(item, inside=True) for item in value]
        kind = items[0][0] if items else _I32
        body = b"".join(raw for _, raw in items)
        return _ARRAY, struct.pack("<IQ", kind, len(items)) + body
    if not isinstance(value, int):
        msg = f"no metadata type for {value!r}"
        raise TypeError(msg)
    if inside:
        return _I32, struct.pack("<i", value)
    if 0 <= value < 2**32:
        return _U32, struct.pack("<I", value)
    return (_U64, struct.pack("<Q", value)) if value >= 0 else (_I64, struct.pack("<q", value))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padding(nbytes: int) -> int:
    return -nbytes % DEFAULT_ALIGNMENT


__all__ = ["Entry", "encoded", "header", "pairs_of", "sketched", "write_gguf"]
