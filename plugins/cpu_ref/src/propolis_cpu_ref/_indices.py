"""Indices given as data are checked before anything is read or written through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.errors import OpError


if TYPE_CHECKING:
    import numpy as np


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
        msg = f"{op}: {what} {worst} is outside {where}, which has {size} rows (0 to {size - 1})"
        raise OpError(msg)
