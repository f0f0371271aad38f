"""
GGUF files, versions 2 and 3, little endian.

Layout (the GGUF specification): magic, version, two counts, that many key-value
pairs, that many tensor descriptions, padding to ``general.alignment``, data.

The header is read front to back by a cursor which knows how many bytes are left.
Nothing is allocated for a count or length before it was compared with them, and
limits far above what models need hold for files of any size, which may be sparse:
``HEADER_LIMIT``, ``COUNT_LIMIT`` and ``ELEMENT_LIMIT``.

Keys and tensor names must be UTF-8.  In string *values*, bad bytes become U+FFFD:
vocabularies in the wild hold such tokens, and an escape that kept the bytes would
make the first ``print`` fail instead.
"""

from __future__ import annotations

import itertools
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple
from typing import TypeAlias

import numpy as np

from propolis import dtypes
from propolis_workers.weights._file import DOWNLOAD
from propolis_workers.weights._file import INCOMPLETE
from propolis_workers.weights._file import PICKLE_SUFFIXES
from propolis_workers.weights._file import MappedFile
from propolis_workers.weights._file import MappedSource
from propolis_workers.weights._file import TensorInfo
from propolis_workers.weights._file import damaged
from propolis_workers.weights._file import show
from propolis_workers.weights._file import unsupported
from propolis_workers.weights._gguf_parts import check_parts
from propolis_workers.weights._gguf_parts import parts_of


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis.errors import FileFormatError
    from propolis_workers.weights._file import StrPath


MetadataValue: TypeAlias = "int | float | bool | str | list[MetadataValue]"

MAGIC: Final = b"GGUF"
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 2**21  # a huge page; larger ones only waste address space
MAX_DIMS: Final = 4
MAX_NUMEL: Final = 2**63 - 1
MAX_KEY: Final = 2**16 - 1
MAX_NAME: Final = 1024  # the specification says 64, converters of image models ignore it
MAX_DEPTH: Final = 4
HEADER_LIMIT: Final = 2**28  # bytes; the largest tokenizers take some 20 MiB
COUNT_LIMIT: Final = 2**16  # tensors, metadata pairs, arrays in arrays; real: a few thousand
ELEMENT_LIMIT: Final = 2**23  # array elements of a file; the largest vocabularies take 2**21

_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_NUMBERS: Final = {
    **dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "|u1"))),
    **dict(enumerate(("<u8", "<i8", "<f8"), 10)),
}
_MIN_PAIR: Final = 8 + 1 + 4 + 1  # key length, key, type, value
_MIN_TENSOR: Final = 8 + 1 + 4 + 4 + 8  # name length, name, dimensions, type, offset

_SUPPORTED: Final = ", ".join(d.name for d in dtypes.ALL if d.ggml_type is not None)
# Names for messages alone: what people meet that no worker reads.
_OTHER_TYPES: Final = {
    **dict.fromkeys((4, 5, 31, 32, 33, 36, 37, 38), "removed from ggml"),
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    21: "iq3_s",
    22: "iq2_s",
    29: "iq1_m",
    40: "nvfp4",
    41: "q1_0",
}
_OLD_MAGICS: Final = (b"lmgg", b"fmgg", b"tjgg", b"algg")

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class GGUFFile(MappedSource):
    """
    A GGUF file: metadata, and tensors as views of the mapped bytes.

    Attributes:
        path: the file, as given to :meth:`open`.
        version: version of the format, 2 or 3.
        metadata: its key-value pairs.
        alignment: every tensor begins at a multiple of it.
        tensors: what the file holds, by name, in the file's order.
    """

    def __init__(
        self,
        file: MappedFile,
        *,
        version: int,
        metadata: Mapping[str, MetadataValue],
        alignment: int,
        tensors: Mapping[str, tuple[TensorInfo, MappedFile]],
    ) -> None:
        super().__init__(file.path, tensors)
        self.version: int = version
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(dict(metadata))
        self.alignment: int = alignment

    @classmethod
    def open(cls, path: StrPath) -> GGUFFile:
        """
        Map a GGUF file and check its whole header; of a split model, all parts.

        Args:
            path: the file, or any part, beside which the others lie.

        Raises:
            ModelError: the file is missing or may not be read.
            FileFormatError: it is damaged, hostile or not a GGUF file.
            UnsupportedModelError: it is sound, but of a version, byte order or
                tensor type that is not supported.
        """
        asked = _read_header(path)
        paths = parts_of(asked.file.path, asked.metadata)
        headers = [asked if one == asked.file.path else _read_header(one) for one in paths]
        if len(headers) > 1:
            held = sum(len(header.tensors) for header in headers)
            check_parts(paths, [header.metadata for header in headers], held)
        tensors: dict[str, tuple[TensorInfo, MappedFile]] = {}
        for header in headers:
            for name, info in header.tensors.items():
                if name in tensors:
                    raise damaged(header.file.path, f"tensor {show(name)} is in another part too")
                tensors[name] = info, header.file
        first = headers[0]
        return cls(
            first.file,
            version=first.version,
            metadata=first.metadata,
            alignment=first.alignment,
            tensors=tensors,
        )


class _Header(NamedTuple):
    """What a file says of itself."""

    file: MappedFile
    version: int
    metadata: dict[str, MetadataValue]
    alignment: int
    tensors: dict[str, TensorInfo]


def _read_header(path: StrPath) -> _Header:
    """Map a file and check its header."""
    file = MappedFile.open(path)
    file.refuse_foreign(magic=MAGIC, suffixes=PICKLE_SUFFIXES)
    cursor = _Cursor(file)
    version = _read_version(cursor)
    tensor_count = cursor.u64("the number of tensors")
    pair_count = cursor.u64("the number of metadata pairs")
    # Both before either is read: the pairs may not eat the tensors' bytes.
    cursor.check_count(tensor_count, _MIN_TENSOR, "tensors", COUNT_LIMIT)
    cursor.check_count(pair_count, _MIN_PAIR, "metadata pairs", COUNT_LIMIT)
    metadata = _read_metadata(cursor, pair_count)
    alignment = _alignment(cursor, metadata)
    tensors = _read_tensors(cursor, tensor_count, alignment)
    return _Header(file, version, metadata, alignment, tensors)


class _Cursor:
    """A position in the header, and the only code that moves it."""

    __slots__ = ("buffer", "elements", "end", "file", "path", "pos")

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.path = file.path
        self.buffer = file.buffer
        self.pos = 0
        self.end = min(file.size, HEADER_LIMIT)
        self.elements = 0

    def take(self, nbytes: int, what: str) -> int:
        """Step over that many bytes and return where they begin."""
        start = self.pos
        if nbytes > self.end - start:
            raise self.too_short(start, nbytes, what)
        self.pos = start + nbytes
        return start

    def too_short(self, start: int, nbytes: int, what: str) -> FileFormatError:
        """The error for a read of ``nbytes`` bytes past the end of the header."""
        left = self.file.size - start
        if nbytes > left:
            found = f"{what} at byte {start} takes {nbytes} bytes, {left} are left in the file"
            return damaged(self.path, found, INCOMPLETE)
        found = f"{what} ends after byte {self.end}, where every header must be over"
        return damaged(self.path, found)

    def check_count(self, count: int, min_bytes: int, what: str, limit: int) -> None:
        """Refuse a count of things that cannot all fit in what is left, or no model needs."""
        room = (self.end - self.pos) // min_bytes
        if count > room:
            found = f"claims {count} {what}, the rest of the file has room for {room}"
            raise damaged(self.path, found, INCOMPLETE)
        if count > limit:
            raise damaged(self.path, f"claims {count} {what}, supported: {limit}")

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit integer."""
        value: int = _U32.unpack_from(self.buffer, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit integer."""
        value: int = _U64.unpack_from(self.buffer, self.take(8, what))[0]
        return value

    def name(self, what: str, limit: int) -> str:
        """The next string, which must be UTF-8 of 1 to ``limit`` bytes."""
        nbytes = self.u64(f"the length of {what}")
        if not 1 <= nbytes <= limit:
            found = f"{what} at byte {self.pos} is {nbytes} bytes long, supported: 1 to {limit}"
            raise damaged(self.path, found)
        start = self.take(nbytes, what)
        raw = self.buffer[start : self.pos]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            found = f"{what} at byte {start} is not UTF-8: {raw[:40]!r}"
            raise damaged(self.path, found) from error

    def value(self, type_id: int, what: str) -> MetadataValue:
        """The next metadata value, of that type."""
        if type_id == _STRING:
            return self.strings(1, what)[0]
        if type_id == _ARRAY:
            return self.array(what)
        if type_id in _NUMBERS:
            return self.numbers(type_id, 1, what)[0]
        raise self.unknown_type(type_id, what)

    def unknown_type(self, type_id: int, what: str) -> FileFormatError:
        """The error for a metadata type that the specification does not have."""
        return damaged(self.path, f"{what} has metadata type {type_id}, known: 0 to 12")

    def array(self, what: str, depth: int = 1) -> list[MetadataValue]:
        """The next array; arrays nest at most ``MAX_DEPTH`` deep."""
        if depth > MAX_DEPTH:
            found = f"{what} holds arrays more than {MAX_DEPTH} deep"
            raise damaged(self.path, found)
        type_id = self.u32(f"the element type of {what}")
        count = self.u64(f"the element count of {what}")
        # An array in an array costs as much time as a hundred numbers do.
        self.elements += count * (ELEMENT_LIMIT // COUNT_LIMIT if type_id == _ARRAY else 1)
        if self.elements > ELEMENT_LIMIT:
            found = f"{what} claims {count} elements, supported: {ELEMENT_LIMIT} in all arrays"
            raise damaged(self.path, found)
        if type_id in _NUMBERS:
            return self.numbers(type_id, count, what)
        if type_id == _STRING:
            return self.strings(count, what)
        if type_id != _ARRAY:
            raise self.unknown_type(type_id, what)
        self.check_count(count, 12, f"arrays in {what}", COUNT_LIMIT)
        return [self.array(what, depth + 1) for _ in range(count)]

    def numbers(self, type_id: int, count: int, what: str) -> list[MetadataValue]:
        """The next ``count`` numbers or booleans."""
        dtype = np.dtype(_NUMBERS[type_id])
        start = self.take(count * dtype.itemsize, what)
        values = np.frombuffer(self.buffer, dtype, count, start)
        if type_id != _BOOL:
            return values.tolist()  # type: ignore[no-any-return]
        if values.max(initial=0) > 1:
            found = f"{what} is a boolean of value {values.max()}, known: 0 and 1"
            raise damaged(self.path, found)
        return values.astype(np.bool_).tolist()  # type: ignore[no-any-return]

    def strings(self, count: int, what: str) -> list[MetadataValue]:
        """The next ``count`` strings."""
        self.check_count(count, 8, f"strings in {what}", ELEMENT_LIMIT)
        buffer, pos, end, unpack = self.buffer, self.pos, self.end, _U64.unpack_from
        values: list[MetadataValue] = []
        append = values.append
        # Vocabularies are half of the time it takes to open a model: hence no calls
        # of methods here.
        for _ in range(count):
            start = pos + 8
            if start > end:
                raise self.too_short(pos, 8, f"the length of a string in {what}")
            pos = start + unpack(buffer, pos)[0]
            if pos > end:
                raise self.too_short(start, pos - start, f"a string in {what}")
            append(str(buffer[start:pos], "utf-8", "replace"))
        self.pos = pos
        return values


def _read_version(cursor: _Cursor) -> int:
    """Check magic and version; they decide how to read the rest."""
    path = cursor.path
    magic = cursor.buffer[:4]
    if magic in _OLD_MAGICS:
        remedy = "supported: GGUF 2 and 3; convert the original model with a current converter"
        raise unsupported(path, "a ggml file from before GGUF", remedy)
    if magic not in (MAGIC, MAGIC[::-1]):
        if MAGIC.startswith(magic):
            raise damaged(path, f"ends after {len(magic)} bytes", INCOMPLETE)
        found = f"begins with {magic!r}, every GGUF file begins with {MAGIC!r}"
        raise damaged(path, found, "give a GGUF file, or a safetensors file under its own name")
    cursor.take(4, "the magic")
    version = cursor.u32("the version")
    supported = "supported: GGUF 2 and 3, little endian"
    if magic != MAGIC or (version & 0xFFFF == 0 and version):
        remedy = f"{supported}; convert the original model on a little-endian machine"
        raise unsupported(path, "a big-endian GGUF file", remedy)
    if version == 0:
        raise damaged(path, f"GGUF version 0, which does not exist, {supported}")
    if version == 1:
        remedy = "convert the original model again with a current converter"
        raise unsupported(path, f"GGUF version 1, {supported}", remedy)
    if version > 3:
        remedy = "update Propolis, or convert the model to version 3"
        raise unsupported(path, f"GGUF version {version}, {supported}", remedy)
    return version


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, MetadataValue]:
    """Read the key-value pairs."""
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        key = cursor.name(f"metadata key {index}", MAX_KEY)
        if key in metadata:
            raise damaged(cursor.path, f"metadata key {show(key)} occurs twice")
        what = f"the value of {show(key)}"
        metadata[key] = cursor.value(cursor.u32(f"the type of {show(key)}"), what)
    return metadata


def _alignment(cursor: _Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    """What tensor offsets are multiples of."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    # bool is an int to Python; True is 1, which is no multiple of 8.
    if isinstance(value, int) and 8 <= value <= MAX_ALIGNMENT and value & (value - 1) == 0:
        return value
    given = value if isinstance(value, int | float) else f"a {type(value).__name__}"
    found = f"general.alignment is {given}, supported: powers of 2 from 8 to {MAX_ALIGNMENT}"
    raise damaged(cursor.path, found)


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Read the tensor descriptions and check that every one lies in the file."""
    relative = [_read_tensor(cursor, index) for index in range(count)]
    start = -(-cursor.pos // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in relative:
        label = f"tensor {show(info.name)}"
        if info.name in tensors:
            raise damaged(cursor.path, f"{label} occurs twice")
        if info.offset % alignment:
            found = f"{label} has offset {info.offset}, no multiple of the alignment {alignment}"
            raise damaged(cursor.path, found)
        offset = start + info.offset
        if offset + info.nbytes > cursor.file.size:
            found = (
                f"{label} takes bytes {offset} to {offset + info.nbytes}, "
                f"the file has {cursor.file.size}"
            )
            raise damaged(cursor.path, found, INCOMPLETE)
        tensors[info.name] = TensorInfo(info.name, info.dtype, info.shape, offset, info.nbytes)
    in_order = sorted(tensors.values(), key=lambda info: info.offset)
    for before, after in itertools.pairwise(in_order):
        if before.offset + before.nbytes > after.offset:
            found = f"tensors {show(before.name)} and {show(after.name)} overlap"
            raise damaged(cursor.path, found)
    return tensors


def _read_tensor(cursor: _Cursor, index: int) -> TensorInfo:
    """Read one description; its offset still counts from the start of the data."""
    path = cursor.path
    name = cursor.name(f"the name of tensor {index}", MAX_NAME)
    label = f"tensor {show(name)}"
    ndim = cursor.u32(f"the number of dimensions of {label}")
    if ndim > MAX_DIMS:
        raise damaged(path, f"{label} has {ndim} dimensions, supported: 0 to {MAX_DIMS}")
    dims = [cursor.u64(f"dimension {axis} of {label}") for axis in range(ndim)]
    numel = 1
    for dim in dims:
        numel *= dim
        if not 0 < numel <= MAX_NUMEL:
            found = f"{label} has dimensions {dims}: each must be at least 1, their product < 2^63"
            raise damaged(path, found)
    type_id = cursor.u32(f"the type of {label}")
    dtype = dtypes.from_ggml(type_id)
    if dtype is None:
        kind = f"ggml type {type_id} ({_OTHER_TYPES.get(type_id, 'unknown')})"
        remedy = f"supported: {_SUPPORTED}; get or make a file quantised to one of them"
        raise unsupported(path, f"{label} is of {kind}", remedy)
    row = dims[0] if dims else 1
    if row % dtype.block_size:
        found = f"{label} has rows of {row}, {dtype.name} needs a multiple of {dtype.block_size}"
        raise damaged(path, found, DOWNLOAD)
    offset = cursor.u64(f"the offset of {label}")
    return TensorInfo(name, dtype, tuple(reversed(dims)), offset, dtype.nbytes(numel))
