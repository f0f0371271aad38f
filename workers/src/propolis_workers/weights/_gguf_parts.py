"""Models that are split over several GGUF files, as llama.cpp's `gguf-split` splits them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.weights._file import INCOMPLETE
from propolis_workers.weights._file import damaged
from propolis_workers.weights._file import unsupported


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence
    from pathlib import Path

MOST: Final = 99_999
"""Parts of a model; five digits name them."""

_NAME: Final = re.compile(r"^(.+)-(\d{5})-of-(\d{5})\.gguf$")


def parts_of(path: Path, metadata: Mapping[str, object]) -> list[Path]:
    """
    The files of a model, the first part first; the one itself where it is whole.

    Args:
        path: any of them.
        metadata: its own.

    Raises:
        ModelError: what it says of itself or its name is none of a part's.
    """
    count, number = _whole(path, metadata, "split.count", 1), _whole(path, metadata, "split.no", 0)
    if count <= 1:
        return [path]
    if not (number < count <= MOST):
        raise damaged(path, f"says that it is part {number + 1} of {count}")
    found = _NAME.match(path.name)
    if found is None or (int(found[2]), int(found[3])) != (number + 1, count):
        wanted = f"NAME-{number + 1:05d}-of-{count:05d}.gguf"
        what = f"part {number + 1} of {count} of a split model, under another name"
        raise unsupported(path, what, f"call it {wanted}, and put the other parts beside it")
    return [path.with_name(f"{found[1]}-{n + 1:05d}-of-{count:05d}.gguf") for n in range(count)]


def check_parts(
    paths: Sequence[Path], metadata: Sequence[Mapping[str, object]], tensors: int
) -> None:
    """
    Check that parts are those of one model.

    Args:
        paths: of all.
        metadata: theirs.
        tensors: that they hold together.

    Raises:
        ModelError: one is not what its name says, or tensors are missing.
    """
    for number, (path, said) in enumerate(zip(paths, metadata, strict=True)):
        own = _whole(path, said, "split.no", -1), _whole(path, said, "split.count", 0)
        if own != (number, len(paths)):
            found = f"says that it is part {own[0] + 1} of {own[1]}, its name says another"
            raise damaged(path, found)
    wanted = _whole(paths[0], metadata[0], "split.tensors.count", tensors)
    if wanted != tensors:
        found = f"the parts hold {tensors} tensors, the model has {wanted}"
        raise damaged(paths[0], found, INCOMPLETE)


def _whole(path: Path, metadata: Mapping[str, object], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if type(value) is not int or value < min(default, 0):
        raise damaged(path, f"{key} is {str(value)[:40]!r}, supported: whole numbers from 0")
    return value


__all__ = ["MOST", "check_parts", "parts_of"]
