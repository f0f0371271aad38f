"""
Make a GGUF file of a safetensors folder, by the names that the registry of architectures has.

Before a file is written it is seen what it would say: one whose numbers are not the folder's is no
file of that model.  From that it is known too how such files arrange what the folder holds.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.models import architectures
from propolis_workers.llm.models import names_in
from propolis_workers.llm.models import read_config
from propolis_workers.llm.models import weights_of
from propolis_workers.llm.rearranged import Rearranged
from propolis_workers.models.gguf_out import Entry
from propolis_workers.models.gguf_out import encoded
from propolis_workers.models.gguf_out import sketched
from propolis_workers.models.numbers import differences
from propolis_workers.models.numbers import metadata_of
from propolis_workers.models.numbers import rope_tensors
from propolis_workers.models.quantize import FLOATS
from propolis_workers.models.quantize import converted
from propolis_workers.models.quantize import writing
from propolis_workers.models.quantize import written
from propolis_workers.models.vocab_out import padded
from propolis_workers.models.vocab_out import vocabulary_of
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping
    from pathlib import Path

    from propolis import Device
    from propolis import DType
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.weights import Weights

TYPES: Final = {"f32": (dtypes.f32, 0), "f16": (dtypes.f16, 1), "bf16": (dtypes.bf16, 32)}
"""Of the matrices, and what files say of it; vectors are f32."""

_SUFFIXES: Final = (".weight", ".bias", "")  # with none, both kinds of files say all of the name
_FILED: Final = "blk."  # names of pieces that are as a file has them
_SMALL: Final = "shortconv.conv.weight"
_LEFT_OUT: Final = ("rotary_emb.inv_freq", "attention.bias", "masked_bias")  # computed anew


@dataclass(frozen=True, slots=True)
class _Source:
    """
    Where a tensor of the file comes from.

    Attributes:
        entry: it.
        names: of the folder's tensors, several where experts become one.
        heads: of queries or keys; 0 where it is of neither.
        norm: whether it is the weight of a norm.
    """

    entry: Entry
    names: tuple[str, ...]
    heads: int = 0
    norm: bool = False


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """
    How the file holds what the folder holds otherwise.

    Attributes:
        neighbours: whether halves of a head of queries and keys become neighbours.
        offset: added to the weights of norms.
    """

    neighbours: bool
    offset: float


def convert(
    folder: Path,
    target: Path,
    kind: str | None,
    device: Device,
    progress: Callable[[int, int], None] | None = None,
    *,
    overwrite: bool = True,
) -> int:
    """
    Write a GGUF file of a model in safetensors.

    Args:
        folder: it.
        target: the file to write.
        kind: a key of ``TYPES``; that of most of the folder's numbers when None.
        device: on which nothing is computed but what formats need.
        progress: called with (bytes written, bytes in all).
        overwrite: whether the file may take the place of another.

    Returns:
        Bytes of the file.

    Raises:
        UnsupportedModelError: GGUF files have no words for something in it, or it is not converted
            here.
        ModelError: it cannot be read, or the file cannot be written.
    """
    with SafetensorsFolder.open(folder) as source:
        config = read_config(source)
        architecture = architectures()[config.architecture]
        held, names = weights_of(source, config), names_in(source, config)
        if architecture.filed is not None:
            held = Rearranged(held, architecture.filed(config, names))
        stored, file_type = TYPES[kind or _most(held)]
        sources = _sources(held, names, config, stored)
        name = architecture.gguf[0] if architecture.gguf else ""
        if not name:
            msg = f"{folder}: GGUF files have no name for the architecture {config.architecture}"
            raise UnsupportedModelError(msg)
        pairs: dict[str, Any] = {
            "general.architecture": name,
            # As Unicode, which names of folders need not be.
            "general.name": os.fsencode(folder.resolve().name).decode(errors="replace"),
        }
        pairs |= {f"{name}.{key}": value for key, value in metadata_of(config).items()}
        pairs |= {"general.file_type": file_type, "general.quantization_version": 2}
        where = folder if folder.is_dir() else folder.parent
        pairs |= padded(vocabulary_of(where), config.vocab_size)
        raw = {key: _said(folder, key, value) for key, value in pairs.items()}
        given = rope_tensors(config)
        entries = [one.entry for one in sources.values()]
        entries += [Entry(key, dtypes.f32, values.shape) for key, values in given.items()]
        arranged = _arranged(target, config, raw, entries, given)
        total, done = sum(entry.nbytes for entry in entries), 0

        def content(entry: Entry) -> Iterator[np.ndarray]:
            nonlocal done
            if entry.name in given:
                yield given[entry.name].view(np.uint8)
            else:
                yield from _bytes(held, sources[entry.name], arranged, device)
            done += entry.nbytes
            if progress is not None:
                progress(done, total)

        return written(target, raw, entries, content, overwrite=overwrite)


def _sources(
    held: Weights, names: Mapping[str, str], config: ModelConfig, stored: DType
) -> dict[str, _Source]:
    """Where each tensor of the file comes from, by the folder's names."""
    known = architectures()[config.architecture].names
    in_file = {ours: both[0] for ours, both in known.items() if both[0]}
    left = {name for name in held.tensors if not name.endswith(_LEFT_OUT)}
    found: dict[str, _Source] = {}
    if architectures()[config.architecture].filed is not None:
        for name in sorted(name for name in left if name.startswith(_FILED)):
            shape = held.tensors[name].shape
            dtype = dtypes.f32 if name.endswith(_SMALL) else stored
            found[name] = _Source(Entry(name, dtype, shape), (name,))
            left.remove(name)
    for ours, theirs in names.items():
        if ours not in in_file:
            continue
        per_layer = ours.startswith("layers.")
        for layer in range(config.layers if per_layer else 1):
            inside = theirs.replace("{}", str(layer), 1) if per_layer else theirs
            for suffix in _SUFFIXES:
                parts = _parts(inside + suffix, held, config)
                if not parts:
                    continue
                left -= {*parts}
                name = in_file[ours].replace("{}", str(layer)) + suffix
                part = ours.rpartition(".")[2]
                heads = {"q": config.heads, "k": config.kv_heads}.get(part, 0)
                norm = "norm" in part and suffix == ".weight"
                shape = _shape(held, parts, 2 * heads)
                shape = (len(parts), *shape) if "{}" in inside else shape
                dtype = stored if _is_matrix(ours, suffix, shape) else dtypes.f32
                if (own := held.tensors[parts[0]].dtype).is_block:
                    dtype = own  # as it is
                found[name] = _Source(Entry(name, dtype, shape), parts, heads, norm)
    if left:
        msg = f"tensor {min(left)} and {len(left) - 1} others of the folder have no name in GGUF "
        msg += f"files of {config.architecture}: it is not converted here"
        raise UnsupportedModelError(msg)
    return found


def _parts(name: str, held: Weights, config: ModelConfig) -> tuple[str, ...]:
    """The folder's tensors of one name: itself, or that of each expert."""
    if "{}" not in name:
        return (name,) if name in held.tensors else ()
    count = config.experts.count if config.experts is not None else 0
    parts = tuple(name.replace("{}", str(number)) for number in range(count))
    return parts if parts and all(part in held.tensors for part in parts) else ()


def _shape(held: Weights, names: tuple[str, ...], halves: int) -> tuple[int, ...]:
    """
    The shape that tensors have alike.

    Args:
        held: the folder's.
        names: of the tensors.
        halves: of heads that their rows are; 0 where they are of none.

    Raises:
        ModelError: they have none, or their rows are not so many.
    """
    shape = held.tensors[names[0]].shape
    for name in names:
        found = held.tensors[name].shape
        if found != shape:
            msg = f"tensor {name} has shape {found}, another than {names[0]} has, {shape}: the "
            msg += "folder is damaged; get it again"
            raise ModelError(msg)
    if halves and (not shape or shape[0] % halves):
        msg = f"tensor {names[0]} has shape {shape}, which are no {halves // 2} heads: the folder "
        msg += "is damaged; get it again"
        raise ModelError(msg)
    return shape


def _is_matrix(ours: str, suffix: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is stored in the type that was asked for: small ones are not."""
    matrix = len(shape) > 1 and suffix == ".weight"
    return matrix and "norm" not in ours and not ours.endswith("router")


def _bytes(
    held: Weights, source: _Source, arranged: _Arrangement, device: Device
) -> Iterator[np.ndarray]:
    heads = source.heads if arranged.neighbours else 0
    offset = arranged.offset if source.norm else 0.0
    for name in source.names:
        info, raw = held.tensors[name], held.data(name)
        dtype = info.dtype
        if dtype.is_block:
            yield raw
            continue
        if dtype not in FLOATS:
            msg = f"tensor {name} is {dtype.name}; supported for GGUF: f32, f16, bf16"
            raise UnsupportedModelError(msg)
        if heads or offset:
            values = np.frombuffer(raw.tobytes(), dtype.numpy).reshape(info.shape)
            if heads:
                halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(info.shape)
            if offset:
                values, dtype = values.astype(np.float32) + np.float32(offset), dtypes.f32
            raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        one = Entry(source.entry.name, source.entry.dtype, info.shape)
        yield from converted(raw, dtype, one, device)


def _most(held: Weights) -> str:
    """The type of most numbers."""
    counts = dict.fromkeys(TYPES, 0)
    for info in held.tensors.values():
        if info.dtype.name in counts:
            counts[info.dtype.name] += math.prod(info.shape)
    return max(counts, key=lambda name: counts[name])


def _said(folder: Path, key: str, value: object) -> bytes:
    """
    A value of the metadata.

    Raises:
        ModelError: the format cannot hold it.
    """
    try:
        return encoded(value)
    except (OverflowError, UnicodeEncodeError, struct.error) as exc:
        why = "which is no Unicode" if isinstance(exc, UnicodeEncodeError) else "out of range"
        msg = f"{folder}: {key} cannot be said in a GGUF file: {value!r:.60}, {why}"
        raise ModelError(msg) from exc


def _arranged(
    target: Path,
    wanted: ModelConfig,
    pairs: dict[str, bytes],
    entries: list[Entry],
    given: dict[str, np.ndarray],
) -> _Arrangement:
    """
    How the file will hold things.

    Raises:
        UnsupportedModelError: it would say other numbers than the folder does.
    """
    with (
        writing(target),
        sketched(target, pairs, entries, given) as path,
        GGUFFile.open(path) as file,
    ):
        try:
            found = read_config(file)
        except ModelError as exc:
            msg = f"{wanted.architecture} is not converted here: {exc}"
            raise UnsupportedModelError(msg) from exc
    differ = differences(wanted, found)
    if differ:
        msg = f"{wanted.architecture} is not converted here: GGUF metadata would differ in "
        msg += "; ".join(differ)
        raise UnsupportedModelError(msg)
    turned = [any(rope.interleaved for rope in one.ropes) for one in (wanted, found)]
    if wanted.latent is not None and turned != [True, True]:
        msg = (
            f"{wanted.architecture} is not converted here: pairs that are turned are no neighbours"
        )
        raise UnsupportedModelError(msg)
    return _Arrangement(turned == [False, True], wanted.norm_offset - found.norm_offset)


__all__ = ["TYPES", "convert"]
