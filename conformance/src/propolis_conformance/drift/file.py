"""
Calls in files: a zip of arrays that ``numpy.load`` reads, none of them pickled.

``header`` is JSON in UTF-8 (op, attributes, how each tensor lies, facts); every tensor
is an array of bytes of its own: ``tensor.NAME`` of the arguments, ``result.N`` of the
destinations after the call.  Nothing is compressed, so that a file's size bounds what
reading it takes.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.errors import FileFormatError
from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis.files import replacing
from propolis.layout import Layout
from propolis.ops import catalogue
from propolis_conformance.drift.call import HostTensor
from propolis_conformance.drift.call import SavedCall


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from propolis.ops import OpSpec

FORMAT: Final = 1

# A tensor that repeats elements (stride 0) may stand for more than its file holds.
_MOST_REPEATED: Final = 2**28
_MAX_HEADER: Final = 2**20


def save(call: SavedCall, path: Path) -> None:
    """
    Write a call.

    Raises:
        UsageError: the file cannot be written.
    """
    arrays: dict[str, Any] = {}
    for name, tensor in call.tensors.items():
        if name not in call.shared:
            arrays[f"tensor.{name}"] = tensor.raw
    for i, tensor in enumerate(call.results):
        arrays[f"result.{i}"] = tensor.raw
    header = {
        "format": FORMAT,
        "op": call.op,
        "attributes": {name: _plain(value) for name, value in call.attributes.items()},
        "tensors": {
            name: {"same_as": call.shared[name]} if name in call.shared else _described(tensor)
            for name, tensor in call.tensors.items()
        },
        "into": {str(i): name for i, name in call.into.items()},
        "prepared": list(call.prepared),
        "results": [_described(tensor) for tensor in call.results],
        "facts": dict(call.facts),
    }
    text = json.dumps(header, default=str).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, header=np.frombuffer(text, np.uint8), **arrays)
    except OSError as exc:
        msg = f"{path} cannot be written: {exc.strerror or exc}"
        raise UsageError(msg) from exc


def free_path(folder: Path, *words: str) -> Path:
    """A path of the folder that names no file yet, made from these words."""
    stem = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words)).strip("-.")
    path, number = folder / f"{stem}.npz", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.npz"
    return path


def load(path: Path) -> SavedCall:
    """
    Read a call; nothing that a file holds is executed, and its sizes are checked first.

    Raises:
        UsageError: there is no such file, or it cannot be read.
        FileFormatError: it is no saved call, or a damaged or hostile one.
    """
    try:
        raw = path.read_bytes()
    except OSError as exc:
        msg = f"{path} cannot be read: {exc.strerror or exc}"
        raise UsageError(msg) from exc
    try:
        arrays = _arrays(raw)
        header = json.loads(arrays["header"].tobytes())
        return _call(header, arrays)
    except PropolisError as exc:
        msg = f"{path} is no saved call: {exc}"
        raise FileFormatError(msg) from exc
    except (
        zipfile.BadZipFile,
        NotImplementedError,  # a zip with encryption or an unknown method
        ArithmeticError,
        AttributeError,
        EOFError,
        IndexError,
        KeyError,
        OSError,  # offsets that no file has
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as exc:
        what = f"it has no {exc}" if isinstance(exc, KeyError) else str(exc)
        msg = f"{path} is no saved call (`propolis drift --save` writes one), or damaged: {what}"
        raise FileFormatError(msg) from exc


def _arrays(raw: bytes) -> dict[str, np.ndarray[Any, Any]]:
    found: dict[str, np.ndarray[Any, Any]] = {}
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                msg = f"its member {info.filename!r} is compressed"
                raise FileFormatError(msg)
            name = info.filename.removesuffix(".npy")
            if name in found:
                msg = f"it has {name!r} twice"
                raise FileFormatError(msg)
            found[name] = _array(name, archive.read(info))
    if found["header"].nbytes > _MAX_HEADER:
        msg = f"its header is {found['header'].nbytes} bytes long; the most is {_MAX_HEADER}"
        raise FileFormatError(msg)
    return found


def _array(name: str, raw: bytes) -> np.ndarray[Any, Any]:
    """The bytes of a member; what it says of its shape must be what is there."""
    stream = io.BytesIO(raw)
    if np.lib.format.read_magic(stream) != (1, 0):
        msg = f"{name!r} is not an array in numpy's format 1.0"
        raise FileFormatError(msg)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    data = np.frombuffer(raw, np.uint8, offset=stream.tell())
    if dtype != np.uint8 or shape != data.shape:
        msg = f"{name!r} is {dtype} of shape {shape} in {data.nbytes} bytes, not a row of bytes"
        raise FileFormatError(msg)
    return data


def _call(header: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> SavedCall:
    if header["format"] != FORMAT:
        msg = f"it has format {header['format']!r}; this version reads {FORMAT}"
        raise FileFormatError(msg)
    spec = catalogue().get(header["op"])
    if spec is None:
        msg = f"it calls the op {header['op']!r}, which is not there"
        raise FileFormatError(msg)
    tensors: dict[str, HostTensor] = {}
    shared: dict[str, str] = {}
    for name, field in header["tensors"].items():
        if "same_as" in field:
            shared[name] = field["same_as"]
            tensors[name] = tensors[field["same_as"]]
        else:
            tensors[name] = _tensor(f"tensor.{name}", field, arrays)
    results = [_tensor(f"result.{i}", f, arrays) for i, f in enumerate(header["results"])]
    call = SavedCall(
        spec.name,
        tensors,
        {name: _value(value) for name, value in header["attributes"].items()},
        shared,
        {int(i): name for i, name in header["into"].items()},
        tuple(header["prepared"]),
        tuple(results),
        {str(name): value for name, value in header["facts"].items()},
    )
    _expect_fits(spec, call)
    return call


def _expect_fits(spec: OpSpec, call: SavedCall) -> None:
    """Refuse arguments that the op has not, or without which it cannot be called."""
    parameters = spec.signature.parameters
    for name in (*call.tensors, *call.attributes):
        if name not in parameters:
            msg = f"{call.op} has no parameter {name!r}; it has {', '.join(parameters)}"
            raise FileFormatError(msg)
        if (name in call.tensors) != str(parameters[name].annotation).startswith("Tensor"):
            missing = call.attributes.get(name, ...) is None
            if not missing:
                msg = f"{call.op}: {name} is of another kind than the op's"
                raise FileFormatError(msg)
    for name in call.tensors.keys() & call.attributes.keys():
        msg = f"{call.op}: {name} is given twice"
        raise FileFormatError(msg)
    for name in spec._tensors:  # noqa: SLF001  (the required tensors of the op)
        if name not in call.tensors:
            msg = f"{call.op}: the tensor {name} is missing"
            raise FileFormatError(msg)
    strange = [*call.prepared, *call.into.values()]
    if any(name not in call.tensors for name in strange):
        msg = f"{call.op}: {', '.join(map(str, strange))} are not all among its tensors"
        raise FileFormatError(msg)


def _tensor(
    member: str, field: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> HostTensor:
    dtype = dtypes.parse_dtype(field["dtype"])
    shape, strides = tuple(field["shape"]), tuple(field["strides"])
    offset, raw = field["offset"], arrays[member]
    numbers = (*shape, *strides, offset)
    if any(type(n) is not int or not 0 <= n < 2**62 for n in numbers) or len(shape) != len(strides):
        msg = f"{member} has shape {shape}, strides {strides} and offset {offset!r}"
        raise FileFormatError(msg)
    layout = Layout(shape, strides, offset)
    block = dtype.block_size
    steps = (*shape[-1:], *strides[:-1])
    if block > 1 and (strides[-1:] != (1,) or any(step % block for step in steps)):
        msg = f"{member}: strides {strides} cut blocks of {dtype}"
        raise FileFormatError(msg)
    expected = dtype.nbytes(layout.extent) - dtype.nbytes(offset)
    if expected != raw.nbytes:
        msg = f"{member}: {dtype} of shape {shape} reaches {expected} bytes, got {raw.nbytes}"
        raise FileFormatError(msg)
    if math.prod(shape) > max(_MOST_REPEATED, 8 * raw.nbytes):
        msg = f"{member}: {raw.nbytes} bytes are repeated to shape {shape}"
        raise FileFormatError(msg)
    return HostTensor(raw, dtype, shape, strides, offset)


def _described(tensor: HostTensor) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "strides": list(tensor.strides),
        "offset": tensor.offset,
    }


def _plain(value: Any) -> Any:
    """An attribute as JSON has it."""
    if isinstance(value, dtypes.DType):
        return {"dtype": value.name}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _value(plain: Any) -> Any:
    """An attribute as ops take it."""
    if isinstance(plain, dict):
        return dtypes.parse_dtype(plain["dtype"])
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if plain is not None and not isinstance(plain, bool | int | float):
        msg = f"an attribute is {plain!r}: allowed are numbers, flags, dtypes and tuples of them"
        raise FileFormatError(msg)
    return plain


__all__ = ["FORMAT", "free_path", "load", "save"]
