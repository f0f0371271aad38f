"""matmul, linear."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.dtypes import i8
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._threads import share
from propolis_cpu_ref._threads import with_help


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Tensor

# Rows that a thread multiplies at a time: fewer, and reading the weights again for each
# piece costs more than BLAS's own threads do.
ROWS = 1024

# Rows that are no matrix yet: reading the weights is all the work.
FEW = 16

# Bytes of weights that one thread reads meanwhile, at least: a tenth of a millisecond.
READ = 1 << 20

# Products of one call that are worth handing work over to threads.
SHARED = 1 << 22


@ieee
def matmul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a @ b`` over the last two dimensions."""
    y = _sums(out)
    np.matmul(_factors(a), _factors(b), out=y)
    _store(out, y)


@ieee
def linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """``x @ w.T + bias``."""
    y = _sums(out)
    shift = None if bias is None else _factors(bias)
    times_transposed(out.device.threads, _factors(x), _factors(w), y, shift)
    _store(out, y)


def _factors(tensor: Tensor) -> np.ndarray:
    """
    The elements in the dtype they are multiplied in.

    That of i8 is f64, which BLAS knows: sums are exact, of up to 2**38 products of 2**14.
    """
    return tensor.array.astype(np.float64) if tensor.dtype.is_integer else wide(tensor)


def _sums(out: Tensor) -> np.ndarray:
    """Memory of ``out``'s shape for sums of such products."""
    return np.empty(out.shape) if out.dtype.is_integer else scratch(out)


def _store(out: Tensor, sums: np.ndarray) -> None:
    """Write sums to ``out``: rounded, or modulo 2**32."""
    store(out, sums.astype(np.int64) if out.dtype.is_integer else sums)


def times_transposed(
    threads: int,
    x: np.ndarray,
    w: np.ndarray,
    out: np.ndarray,
    bias: np.ndarray | None = None,
) -> None:
    """
    ``out = x @ w.T + bias``, over all leading dimensions of ``x``.

    Threads take rows where there are many, else outputs; BLAS's own threads wait for each
    other in every product, which takes ten times as long where other programs run.
    """
    count = math.prod(out.shape[:-1])
    if count < FEW:  # as when decoding, where every microsecond of a call counts
        y, rows = out.reshape(count, out.shape[-1]), x.reshape(count, x.shape[-1])
        parts = _split(len(w), max(1, min(4 * threads, w.nbytes // READ)))
        with_help(threads, y, parts, lambda part: rows @ w[part].T, w.size)
        if bias is not None:
            y += bias
        return
    pieces = [
        (values, results, part)
        for values, results in _matrices(x, out)
        for part in _parts(threads, len(values), w)
    ]

    def work(some: Iterator[tuple[np.ndarray, np.ndarray, tuple[slice, slice]]]) -> None:
        for values, results, (rows, columns) in some:
            piece = results[rows, columns]
            np.matmul(values[rows], w[columns].T, out=piece)
            if bias is not None:
                piece += bias[columns]

    share(threads, pieces, work)


def _parts(threads: int, rows: int, w: np.ndarray) -> list[tuple[slice, slice]]:
    """Rows and outputs of a product that are computed together."""
    outputs = len(w)
    if rows >= threads * ROWS:
        return [(slice(n, n + ROWS), slice(0, outputs)) for n in range(0, rows, ROWS)]
    count = threads if rows * w.size >= SHARED else 1
    return [(slice(0, rows), part) for part in _split(outputs, count)]


def _split(outputs: int, count: int) -> list[slice]:
    """So many parts of about one size."""
    bounds = [outputs * n // count for n in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def _matrices(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """
    Rows of (..., in) and of (..., out), as matrices that need no copy.

    BLAS reads a transposed matrix as it is, such as the pixels of an image with its
    channels first; reshaping a batch of them would copy it.
    """
    if x.ndim == 3 and not x.flags.c_contiguous and x.shape[1] >= ROWS:
        return list(zip(x, y, strict=True))
    # Counted, because numpy cannot infer a size beside a 0.
    rows = math.prod(x.shape[:-1])
    return [(x.reshape(rows, x.shape[-1]), y.reshape(rows, y.shape[-1]))]


OPS = [
    OpImpl(op="matmul", fn=matmul, dtypes=FLOATS | {i8}),
    OpImpl(op="linear", fn=linear, dtypes=FLOATS | {i8}),
]
