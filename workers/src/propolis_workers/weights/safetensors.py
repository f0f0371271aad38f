"""
Safetensors: one file, or a folder with one file or with an index and its shards.

Layout of a file: the length of the header in 8 bytes, the header in JSON (name ->
dtype, shape, data_offsets), data.  The rules are those of the safetensors library,
which tests hold this reader to: tensors fill the data without holes or overlaps.
It is not used to read, since it gives out no view of bytes that it maps, and its
errors name neither the file nor, mostly, the tensor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_workers.weights._file import DOWNLOAD
from propolis_workers.weights._file import INCOMPLETE
from propolis_workers.weights._file import PICKLE_SUFFIXES
from propolis_workers.weights._file import MappedFile
from propolis_workers.weights._file import MappedSource
from propolis_workers.weights._file import TensorInfo
from propolis_workers.weights._file import damaged
from propolis_workers.weights._file import pickle_refused
from propolis_workers.weights._file import show
from propolis_workers.weights._file import unsupported
from propolis_workers.weights._file import unusable


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis.dtypes import DType
    from propolis_workers.weights._file import StrPath


JSON_LIMIT: Final = 100_000_000  # bytes; the limit that the safetensors library has
COUNT_LIMIT: Final = 2**17  # tensors of a file; large models have some thousands in each shard
MAX_DIMS: Final = 32
MAX_NUMEL: Final = 2**63 - 1
# An index of shards; diffusers put the name of a variant at either place.
INDEXES: Final = (".safetensors.index.json", ".safetensors.index.fp16.json")
# transformers and diffusers name the files of a model folder differently, and files of
# half precision may lie beside or in place of the full one's.
_STEMS: Final = (
    "model",
    "diffusion_pytorch_model",
    "model.fp16",
    "diffusion_pytorch_model.fp16",
)

_DTYPES: Final[Mapping[str, DType]] = {
    "F64": dtypes.f64,
    "F32": dtypes.f32,
    "F16": dtypes.f16,
    "BF16": dtypes.bf16,
    "F8_E4M3": dtypes.f8e4m3,
    "F8_E5M2": dtypes.f8e5m2,
    "U8": dtypes.u8,
    "U32": dtypes.u32,
    "I8": dtypes.i8,
    "I16": dtypes.i16,
    "I32": dtypes.i32,
    "I64": dtypes.i64,
}


class SafetensorsFolder(MappedSource):
    """
    A model in safetensors files: tensors as views of the mapped bytes.

    Where the model has an index, the index decides which tensors there are and in
    which shard each lies; what a shard holds besides is left alone.  Offsets of
    tensors count from the start of their shard.  The format does not align data:
    a view may begin at any address.

    Attributes:
        path: the folder or file, as given to :meth:`open`.
        config: what ``config.json`` beside the weights holds; empty without one.
        metadata: what the header of one file says besides; empty where there is an index.
        tensors: what the model holds, by name.
    """

    def __init__(
        self,
        path: Path,
        *,
        config: dict[str, Any],
        tensors: Mapping[str, tuple[TensorInfo, MappedFile]],
        metadata: Mapping[str, str],
    ) -> None:
        super().__init__(path, tensors)
        self.config: dict[str, Any] = config
        self.metadata = metadata

    @classmethod
    def open(cls, path: StrPath, *, diffusers: bool = False) -> SafetensorsFolder:
        """
        Map a model and check all of its headers.

        Args:
            path: a folder with ``model.safetensors`` or with
                ``model.safetensors.index.json`` and its shards (or with diffusers'
                ``diffusion_pytorch_model`` in place of ``model``), or with their
                ``fp16`` variants alone, or one of these files, or a safetensors file of
                any name.
            diffusers: it is one of its models: of several that lie there its names come before
                transformers', and shards before a whole file.

        Raises:
            ModelError: a file is missing or may not be read.
            FileFormatError: one is damaged, hostile or of another kind.
            UnsupportedModelError: it is a pickle, or a tensor's dtype is not
                supported.
        """
        path = Path(path)
        weights = _find(path, diffusers=diffusers) if _is_folder(path) else path
        metadata: dict[str, str] = {}
        if weights.name.endswith(INDEXES):
            tensors = _open_shards(weights)
        else:
            tensors, metadata = _open_file(weights)
        beside = weights.with_name("config.json")
        config = _read_json(beside) if _exists(beside) else {}
        return cls(path, config=config, tensors=tensors, metadata=metadata)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder; what cannot be told fails later, when it is opened."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _exists(path: Path) -> bool:
    """Whether there is anything of that name, be it unreadable or a dangling link."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _find(folder: Path, *, diffusers: bool) -> Path:
    """
    The weights of a model folder: one file, or an index.

    Where a folder has several, that which the library that wrote it would read.
    """
    stems = sorted(_STEMS, key=lambda stem: stem.startswith("model")) if diffusers else _STEMS
    whole, shards, variant = ".safetensors", *INDEXES
    suffixes = (shards, whole, variant) if diffusers else (whole, shards, variant)
    for stem in stems:
        for suffix in suffixes:
            path = folder / f"{stem}{suffix}"
            if _exists(path):
                return path
    try:
        others = sorted(folder.iterdir())
    except OSError as error:
        remedy = "make it readable for the user who runs the worker"
        raise unusable(folder, "the folder cannot be listed", remedy) from error
    if _exists(folder / "adapter_config.json"):
        found = "an adapter of peft, to be added to a model, not a model"
        remedy = "merge it into its base model (merge_and_unload, save_pretrained), and give that"
        raise unusable(folder, found, remedy)
    for path in others:
        if path.suffix.lower() in PICKLE_SUFFIXES:
            raise pickle_refused(path)
        if path.suffix.lower() in (".gguf", ".safetensors"):
            found = f"no model.safetensors or model{INDEXES[0]} in the folder"
            raise unusable(folder, found, f"give the file itself: {show(path.name)}?")
    if _exists(folder / "model_index.json"):
        found = "a model that draws, in the layout of diffusers; here a language model is wanted"
        raise unusable(folder, found, "give it to `propolis sd -m` or `propolis serve --images`")
    found = f"no {_STEMS[0]}.safetensors or {_STEMS[1]}.safetensors, nor the index of shards of one"
    remedy = "give the folder that holds the model's weights; if it is this one, get them again"
    raise unusable(folder, found, remedy)


def _open_shards(index: Path) -> dict[str, tuple[TensorInfo, MappedFile]]:
    """Map the shards that an index names."""
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise damaged(index, "has no object 'weight_map' of tensor names and file names")
    shards: dict[str, dict[str, tuple[TensorInfo, MappedFile]]] = {}
    tensors: dict[str, tuple[TensorInfo, MappedFile]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_shard_name(shard):
            found = f"puts tensor {show(name)} in {_brief(shard)}"
            remedy = "a shard must be a .safetensors file beside the index; get the model again"
            raise damaged(index, found, remedy)
        if shard not in shards:
            shards[shard], _ = _open_file(index.with_name(shard))
        tensor = shards[shard].get(name)
        if tensor is None:
            found = f"puts tensor {show(name)} in {show(shard)}, which does not hold it"
            raise damaged(index, found, "index and shards differ: get all of them again")
        tensors[name] = tensor
    return tensors


def _is_shard_name(name: str) -> bool:
    """Whether a file name from an index stays in the index's folder."""
    return name.endswith(".safetensors") and not name.startswith(".") and not {*"/\\\0"} & {*name}


def _open_file(path: Path) -> tuple[dict[str, tuple[TensorInfo, MappedFile]], dict[str, str]]:
    """Map one file and check its header: tensors, and what it says besides."""
    file = MappedFile.open(path)
    file.refuse_foreign(suffixes=PICKLE_SUFFIXES)
    if file.size < 8:
        raise damaged(path, f"ends after {file.size} bytes, a header takes 8 at least", INCOMPLETE)
    length = int.from_bytes(file.buffer[:8], "little")
    start = 8 + length
    if length > JSON_LIMIT:
        found = f"claims a header of {length} bytes, supported: {JSON_LIMIT}"
        raise damaged(path, found, "it is no safetensors file, or damaged: get it again")
    if start > file.size:
        found = f"claims a header of {length} bytes, {file.size - 8} are left in the file"
        raise damaged(path, found, INCOMPLETE)
    raw = file.buffer[8:start]
    if not raw.startswith(b"{"):
        raise damaged(path, f"the header begins with {raw[:1]!r}, supported: a JSON object")
    header = _parse_json(path, raw)
    metadata = _metadata(path, header.pop("__metadata__", None))
    if len(header) > COUNT_LIMIT:
        raise damaged(path, f"holds {len(header)} tensors, supported: {COUNT_LIMIT}")
    tensors = [_tensor(path, name, entry, start) for name, entry in header.items()]
    end = start
    for info in sorted(tensors, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != end:
            found = f"tensor {show(info.name)} begins at byte {info.offset}, expected {end}"
            raise damaged(path, f"{found}: tensors may neither overlap nor leave holes")
        end += info.nbytes
    if end != file.size:
        found = f"the tensors end at byte {end}, the file at {file.size}"
        raise damaged(path, found, INCOMPLETE if end > file.size else DOWNLOAD)
    return {info.name: (info, file) for info in tensors}, metadata


def _metadata(path: Path, metadata: object) -> dict[str, str]:
    """The one header entry that is no tensor, checked."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise damaged(path, "'__metadata__' is not an object of strings")
    return metadata


def _tensor(path: Path, name: str, entry: object, start: int) -> TensorInfo:
    """Check the header entry of one tensor."""
    label = f"tensor {show(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise damaged(path, f"{label} is not described by dtype, shape and data_offsets alone")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _is_sizes(shape) or len(shape) > MAX_DIMS:
        found = f"{label} has shape {_brief(shape)}, supported: 0 to {MAX_DIMS} sizes >= 0"
        raise damaged(path, found)
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise damaged(path, f"{label} has data_offsets {_brief(offsets)}, not [begin, end]")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        found = f"{label} has dtype {_brief(entry['dtype'])}, supported: {', '.join(_DTYPES)}"
        raise unsupported(path, found, "convert the model to one of them")
    numel = 1
    for size in shape:
        numel *= size
        if numel > MAX_NUMEL:
            found = f"{label} has shape {_brief(shape)} of more than 2^63 elements"
            raise damaged(path, found)
    begin, end = offsets
    if dtype.nbytes(numel) != end - begin:
        found = f"{label} of {dtype.name} {shape} takes {dtype.nbytes(numel)} bytes"
        raise damaged(path, f"{found}, its data_offsets span {end - begin}")
    return TensorInfo(name, dtype, tuple(shape), start + begin, end - begin)


def _is_sizes(value: object) -> bool:
    """Whether a JSON value is a list of whole numbers that sizes and offsets can be."""
    # type(), since JSON's true is an int to Python.
    return isinstance(value, list) and all(type(v) is int and 0 <= v <= MAX_NUMEL for v in value)


def _brief(value: object) -> str:
    """A JSON value for a message: deep or long ones are not worth printing."""
    if isinstance(value, dict | list) and not _is_sizes(value):
        return f"a JSON {type(value).__name__}"
    return show(value) if isinstance(value, str) else str(value)[:80]


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    file = MappedFile.open(path)
    file.refuse_foreign()
    if file.size > JSON_LIMIT:
        raise damaged(path, f"a JSON file of {file.size} bytes, supported: {JSON_LIMIT}")
    return _parse_json(path, file.buffer[:])


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8 whose keys do not repeat."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Refuse what makes two readers disagree: repeated keys, lone surrogates."""
        for pair in pairs:
            for text in pair:
                if isinstance(text, str) and not text.isascii():
                    text.encode()
        result = dict(pairs)
        if len(result) != len(pairs):
            msg = "a key occurs twice"
            raise ValueError(msg)
        return result

    try:
        value = json.loads(raw.decode(), object_pairs_hook=unique)
    except RecursionError as error:
        raise damaged(path, "its JSON is nested too deep") from error
    except ValueError as error:
        raise damaged(path, f"its JSON cannot be read ({show(str(error))})") from error
    if not isinstance(value, dict):
        raise damaged(path, f"holds a JSON {type(value).__name__}, supported: an object")
    return value
