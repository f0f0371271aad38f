"""Rows and elements by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis.errors import OpError
from propolis_cpu_ref._blocks import dequantize_blocks
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._indices import unmask
from propolis_cpu_ref.ops_cast import convert


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Tensor


@ieee
def embedding(out: Tensor, ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> None:
    """Gather rows; rows of a block format are dequantised, only those."""
    del dtype  # out has it
    which, masked = unmask("embedding", ids.array, table.shape[0], "the table")
    if out.numel == 0:
        return
    if table.shape[0] == 0:
        out.array[...] = 0  # every id is masked, or the check had failed
        return
    rows = np.take(table.array, which, axis=0)
    source = table.dtype
    if source.is_block:
        values = np.empty(out.numel, np.float32)
        dequantize_blocks(rows.reshape(-1), source, values)
        rows, source = values.reshape(out.shape), dtypes.f32
    out.array[...] = convert(rows, source, out.dtype)
    if masked is not None:
        out.array[masked] = 0


def index_select(out: Tensor, x: Tensor, ids: Tensor, /, dim: int = 0) -> None:
    """Slices of one dimension, in the order of ``ids``; masked ones are 0."""
    which, masked = unmask("index_select", ids.array, x.shape[dim], "the dimension")
    target = np.moveaxis(out.array, dim, 0)
    source = np.moveaxis(x.array, dim, 0)
    target[...] = source[which] if len(source) else 0
    if masked is not None:
        target[masked] = 0


def gather(out: Tensor, x: Tensor, ids: Tensor, /, dim: int = -1) -> None:
    """Elements of one dimension by index; masked ones are 0."""
    which, masked = unmask("gather", ids.array, x.shape[dim], "the dimension")
    if x.numel == 0:
        out.array[...] = 0
        return
    out.array[...] = x.array[_positions(which, dim)]
    if masked is not None:
        out.array[masked] = 0


def scatter(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = -1) -> None:
    """Write elements by index, in order along ``dim``, so that the last one stays."""
    which, masked = unmask("scatter", ids.array, target.shape[dim], "the dimension")
    _refuse_repeated("scatter", target)
    # One position of ``dim`` at a time: numpy promises no order within one assignment.
    for step in range(ids.shape[dim]):
        where, rows = _slice(which, masked, source.array, step, dim)
        target.array[where] = rows


@ieee
def scatter_add(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = -1) -> None:
    """Add elements by index, in order along ``dim``."""
    which, masked = unmask("scatter_add", ids.array, target.shape[dim], "the dimension")
    _refuse_repeated("scatter_add", target)
    total, added = _summable(target), _summable(source)
    for step in range(ids.shape[dim]):
        where, rows = _slice(which, masked, added, step, dim)
        total[where] += rows
    target.array[...] = total


@ieee
def index_add(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = 0) -> None:
    """Add slices by index, one after the other."""
    which, masked = unmask("index_add", ids.array, target.shape[dim], "the dimension")
    _refuse_repeated("index_add", target)
    total = _summable(target)
    rows, added = np.moveaxis(total, dim, 0), np.moveaxis(_summable(source), dim, 0)
    for position, row in enumerate(which):
        if masked is None or not masked[position]:
            rows[row] += added[position]
    target.array[...] = total


def _positions(ids: np.ndarray, dim: int) -> tuple[np.ndarray, ...]:
    """Index arrays that address ``ids`` along ``dim`` and every other index as it is."""
    grid = list(np.ogrid[tuple(slice(n) for n in ids.shape)])
    grid[dim] = ids
    return tuple(grid)


def _slice(
    ids: np.ndarray,
    masked: np.ndarray | None,
    source: np.ndarray,
    step: int,
    dim: int,
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Where position ``step`` of ``dim`` goes, and its elements, without masked ones."""
    grid = np.indices([1 if d == dim % ids.ndim else n for d, n in enumerate(ids.shape)])
    pick = [slice(None)] * ids.ndim
    pick[dim] = slice(step, step + 1)
    part = tuple(pick)
    grid[dim % ids.ndim] = ids[part]
    keep = np.ones(ids[part].shape, bool) if masked is None else ~masked[part]
    return tuple(axis[keep] for axis in grid), source[part][keep]


def _summable(x: Tensor) -> np.ndarray:
    """A copy to sum in: integers as they are, floats in f32 or f64."""
    return np.array(x.array if x.dtype.is_integer else wide(x))


def _refuse_repeated(op: str, target: Tensor) -> None:
    """A target that repeats elements (stride 0) has no one place to write to."""
    pairs = zip(target.shape, target.strides, strict=True)
    # An empty target repeats nothing, whatever its strides.
    if target.numel and any(size > 1 and stride == 0 for size, stride in pairs):
        msg = f"{op}: the target repeats elements (strides {target.strides}); copy it first"
        raise OpError(msg)


OPS = [
    OpImpl(
        op="embedding",
        fn=embedding,
        dtypes={"table": frozenset(dtypes.ALL)},
        notes="dequantises only the rows it reads",
    ),
    OpImpl(op="index_select", fn=index_select, dtypes={"x": PLAIN}),
    OpImpl(op="gather", fn=gather, dtypes={"x": PLAIN}),
    OpImpl(op="scatter", fn=scatter, dtypes={"target": PLAIN}),
    OpImpl(op="scatter_add", fn=scatter_add, dtypes={"target": PLAIN}),
    OpImpl(op="index_add", fn=index_add, dtypes={"target": PLAIN}),
]
