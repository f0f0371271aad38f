"""Indices given as data are checked before anything is read or written through them."""

from __future__ import annotations

from typing import Final

import numpy as np

from propolis.dtypes import INTEGERS
from propolis.errors import OpError


_LARGEST: Final = {d.numpy: np.iinfo(d.numpy).max for d in INTEGERS}


def check_range(op: str, what: str, indices: np.ndarray, size: int, where: str) -> None:
    """
    Check that every index is in [0, size).

    Raises:
        OpError: one is not; names the worst.
    """
    if indices.size == 0:
        return
    lowest, highest = indices.min(), indices.max()
    if lowest < 0 or highest >= size:
        worst = lowest if lowest < 0 else highest
        rows = f"{size} rows (0 to {size - 1})" if size else "no rows"
        msg = f"{op}: {what} {worst} is outside {where}, which has {rows}"
        raise OpError(msg)


def unmask(op: str, ids: np.ndarray, size: int, where: str) -> tuple[np.ndarray, np.ndarray | None]:
    """
    Indices that can be used, and which of them are masked.

    An index that is the largest value of its dtype is masked: it becomes 0 here, and
    its element is to be read as 0, or not to be written.

    Returns:
        The indices, and a mask of their shape, or None when none is masked.

    Raises:
        OpError: an index that is not masked is outside [0, size).
    """
    largest = _LARGEST[ids.dtype]
    if ids.size == 0 or (ids.min() >= 0 and ids.max() < min(size, largest)):
        return ids, None
    masked = ids == largest
    check_range(op, "id", ids[~masked], size, where)
    return np.where(masked, 0, ids), masked
