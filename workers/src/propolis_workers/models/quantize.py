"""Quantise a GGUF file by the op ``quantize``, tensor by tensor."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis.wording import did_you_mean
from propolis_workers.models.gguf_out import Entry
from propolis_workers.models.gguf_out import encoded
from propolis_workers.models.gguf_out import pairs_of
from propolis_workers.models.gguf_out import write_gguf
from propolis_workers.models.mixtures import MIXTURES
from propolis_workers.models.mixtures import formats
from propolis_workers.weights import GGUFFile
from propolis_workers.weights._file import MappedFile


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping
    from pathlib import Path

    from propolis import Device
    from propolis import DType
    from propolis_workers.weights import TensorInfo

FLOATS = (dtypes.f32, dtypes.f16, dtypes.bf16)
_AT_ONCE = 1 << 24  # numbers; bounds the memory
_LARGEST = 65504  # up to here f16 holds all, and so do scales of blocks


@dataclass(frozen=True, slots=True)
class Quantized:
    """
    What was written.

    Attributes:
        before: bytes of the file that was read.
        after: bytes of the file that was written.
        formats: element type -> bytes of the tensors that have it now.
    """

    before: int
    after: int
    formats: dict[str, int]


def quantize(
    source: Path,
    target: Path,
    kind: str,
    device: Device,
    progress: Callable[[int, int], None] | None = None,
    *,
    overwrite: bool = True,
) -> Quantized:
    """
    Write a model in a smaller type.

    Args:
        source: a GGUF file in f32, f16 or bf16.
        target: the file to write.
        kind: a key of ``MIXTURES``, in either case.
        device: whose op computes.
        progress: called with (bytes read, bytes in all).
        overwrite: whether the file may take the place of another.

    Raises:
        UsageError: there is no such type.
        ModelError: the file cannot be read, is quantised already, or cannot be written.
    """
    mixture = MIXTURES.get(kind.lower())
    if mixture is None:
        near = did_you_mean(kind.lower(), MIXTURES)
        msg = f"--type {kind} is not known; supported: {', '.join(MIXTURES)}; {near}".rstrip("; ")
        raise UsageError(msg)
    with GGUFFile.open(source) as file:
        blocks = next((info for info in file.tensors.values() if info.dtype.is_block), None)
        if blocks is not None:
            msg = f"{source} is quantised already ({blocks.name} is {blocks.dtype.name}), and what "
            msg += "was lost would be lost twice: give a file in f32, f16 or bf16"
            raise ModelError(msg)
        shapes = {name: info.shape for name, info in file.tensors.items()}
        wanted = formats(mixture, shapes, _experts(file))
        entries = [
            Entry(name, _stored(wanted[name], info), info.shape)
            for name, info in file.tensors.items()
        ]
        total = sum(info.nbytes for info in file.tensors.values())
        done = 0

        def content(entry: Entry) -> Iterator[np.ndarray]:
            nonlocal done
            info = file.tensors[entry.name]
            yield from converted(file.data(entry.name), info.dtype, entry, device)
            done += info.nbytes
            if progress is not None:
                progress(done, total)

        pairs = pairs_of(MappedFile.open(file.path).buffer)  # of a split model the first part's
        pairs["general.file_type"] = encoded(mixture.file_type)
        pairs["general.quantization_version"] = encoded(2)
        size = written(target, pairs, entries, content, overwrite=overwrite)
    by_format: dict[str, int] = {}
    for entry in entries:
        by_format[entry.dtype.name] = by_format.get(entry.dtype.name, 0) + entry.nbytes
    # Of a split model the tensors are in several files.
    return Quantized(max(total, source.stat().st_size), size, by_format)


def written(
    target: Path,
    pairs: Mapping[str, bytes],
    entries: list[Entry],
    content: Callable[[Entry], Iterator[np.ndarray]],
    *,
    overwrite: bool,
) -> int:
    """
    Write a GGUF file; what the disk refuses is an error of the file's.

    Raises:
        ModelError: it cannot be written.
    """
    with writing(target):
        return write_gguf(target, pairs, entries, content, overwrite=overwrite)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """
    What the disk refuses while a file is made is an error of the file's.

    Raises:
        ModelError: it cannot be written.
    """
    try:
        yield
    except BlockingIOError:
        msg = f"another process is writing {target}: wait until it has ended, or give another name"
        raise ModelError(msg) from None
    except FileExistsError:
        msg = f"{target} has been written by somebody else meanwhile, and stays: give another name"
        raise ModelError(msg) from None
    except OSError as exc:
        msg = f"{target} cannot be written ({exc.strerror or exc}): make room there, or give a "
        msg += "file elsewhere; nothing was left behind"
        raise ModelError(msg) from exc


def converted(raw: np.ndarray, dtype: DType, entry: Entry, device: Device) -> Iterator[np.ndarray]:
    """
    The bytes of a tensor in another element type, in pieces of whole rows.

    Args:
        raw: its bytes, which may begin anywhere.
        dtype: what they are, a float or the entry's own type.
        entry: what they become.
        device: whose op computes.

    Raises:
        UsageError: a number is none, or is larger than the type can hold.
    """
    if dtype is entry.dtype:
        yield raw
        return
    row = entry.shape[-1] if entry.shape else 1
    rows = math.prod(entry.shape) // row
    step = max(1, _AT_ONCE // row)
    for start in range(0, rows, step):
        some = raw[start * row * dtype.block_bytes : (start + step) * row * dtype.block_bytes]
        values = np.frombuffer(some.tobytes(), dtype.numpy).reshape(-1, row).astype(np.float32)
        most = float(np.abs(values).max(initial=0))
        if not most <= _LARGEST and not _holds(values, entry.dtype, device):
            what = (
                f"{most:.3g}, which {entry.dtype} cannot hold" if np.isfinite(most) else str(most)
            )
            msg = f"{entry.name} has {what}: give another --type, or mend the model"
            raise UsageError(msg)
        if entry.dtype.is_block:
            values = ops.quantize(Tensor.from_numpy(values, device), entry.dtype).numpy()
        else:
            values = values.astype(entry.dtype.numpy)
        yield np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _holds(values: np.ndarray, dtype: DType, device: Device) -> bool:
    """Whether large numbers, and no others, are numbers in a type still."""
    if not np.isfinite(values).all():
        return False
    if dtype.is_block:
        stored = ops.quantize(Tensor.from_numpy(values, device), dtype)
        return bool(np.isfinite(ops.dequantize(stored).numpy()).all())
    with np.errstate(over="ignore"):
        return bool(np.isfinite(values.astype(dtype.numpy).astype(np.float32)).all())


def _stored(wanted: DType | None, info: TensorInfo) -> DType:
    """The element type of a tensor in the file: more exact ones are not made of less exact."""
    if wanted is None or info.dtype not in FLOATS:
        return info.dtype
    return wanted


def _experts(file: GGUFFile) -> int:
    found = file.metadata.get(f"{file.metadata.get('general.architecture')}.expert_count", 0)
    return found if isinstance(found, int) else 0


__all__ = ["Quantized", "converted", "quantize", "writing", "written"]
