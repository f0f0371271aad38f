"""copy, kv_append."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis_cpu_ref._indices import check_range


if TYPE_CHECKING:
    from propolis import Tensor


def copy(out: Tensor, x: Tensor, /) -> None:
    """Copy every element; of block formats, every byte."""
    np.copyto(out.array, x.array)


def kv_append(cache: Tensor, x: Tensor, positions: Tensor, /) -> None:
    """Write each token's row at its position; nothing is written if one is outside."""
    rows = positions.array
    check_range("kv_append", "position", rows, cache.shape[1], "the cache")
    target, source = cache.array, x.array
    for sequence in range(len(rows)):
        target[sequence, rows[sequence]] = source[sequence]


OPS = [
    OpImpl(op="copy", fn=copy, dtypes=frozenset(dtypes.ALL)),
    OpImpl(op="kv_append", fn=kv_append, dtypes={"cache": PLAIN}),
]
