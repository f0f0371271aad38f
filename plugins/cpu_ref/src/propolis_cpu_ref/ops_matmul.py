"""matmul, linear."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor


@ieee
def matmul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a @ b`` over the last two dimensions."""
    y = scratch(out)
    np.matmul(wide(a), wide(b), out=y)
    store(out, y)


@ieee
def linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """``x @ w.T + bias``."""
    y = scratch(out)
    times_transposed(wide(x), wide(w), y)
    if bias is not None:
        y += wide(bias)
    store(out, y)


def times_transposed(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
    """``out = x @ w.T`` with all leading dimensions of ``x`` as one: one BLAS call."""
    # Counted, because numpy cannot infer a size beside a 0.
    rows = math.prod(out.shape[:-1])
    np.matmul(x.reshape(rows, w.shape[1]), w.T, out=out.reshape(rows, w.shape[0]))


OPS = [
    OpImpl(op="matmul", fn=matmul, dtypes=FLOATS),
    OpImpl(op="linear", fn=linear, dtypes=FLOATS),
]
