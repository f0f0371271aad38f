"""Copies, constants and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._indices import check_range
from propolis_cpu_ref.ops_cast import as_scalar
from propolis_cpu_ref.ops_cast import convert


if TYPE_CHECKING:
    from propolis import Tensor


def copy(out: Tensor, x: Tensor, /) -> None:
    """Copy every element; of block formats, every byte."""
    np.copyto(out.array, x.array)


def assign(target: Tensor, source: Tensor, /) -> None:
    """Copy every element, or byte of blocks, into a view, also where the two overlap."""
    np.copyto(target.array, source.array)


@ieee
def fill(target: Tensor, /, value: float) -> None:
    """Set every element."""
    target.array[...] = as_scalar(value, target.array.dtype)


@ieee
def arange(target: Tensor, /, start: float = 0, step: float = 1) -> None:
    """``start + i * step``: integers modulo 2**64, floats in f64, rounded once."""
    if target.dtype.is_integer:
        first, distance = (np.uint64(int(n) % 2**64) for n in (start, step))
        whole = first + np.arange(target.numel, dtype=np.uint64) * distance
        target.array[...] = whole.astype(target.array.dtype).reshape(target.shape)
        return
    values = float(start) + np.arange(target.numel, dtype=np.float64) * float(step)
    target.array[...] = convert(values, dtypes.f64, target.dtype).reshape(target.shape)


def kv_append(cache: Tensor, x: Tensor, positions: Tensor, /) -> None:
    """Write each token's row at its position; nothing is written if one is outside."""
    rows = positions.array
    check_range("kv_append", "position", rows, cache.shape[1], "the cache")
    target, source = cache.array, x.array
    for sequence in range(len(rows)):
        target[sequence, rows[sequence]] = source[sequence]


OPS = [
    OpImpl(op="copy", fn=copy, dtypes=frozenset(dtypes.ALL)),
    OpImpl(op="assign", fn=assign, dtypes=frozenset(dtypes.ALL)),
    OpImpl(op="fill", fn=fill, dtypes=PLAIN),
    OpImpl(op="arange", fn=arange, dtypes=PLAIN),
    OpImpl(op="kv_append", fn=kv_append, dtypes={"cache": frozenset(dtypes.ALL)}),
]
