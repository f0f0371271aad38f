"""softmax, log_softmax."""

from __future__ import annotations

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
def softmax(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """``exp(x - max) / sum(exp(x - max))`` over one dimension."""
    values, y = wide(x), scratch(out)
    if y.size:
        np.subtract(values, values.max(axis=dim, keepdims=True), out=y)
        np.exp(y, out=y)
        y /= y.sum(axis=dim, keepdims=True)
    store(out, y)


@ieee
def log_softmax(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """``x - max - log(sum(exp(x - max)))`` over one dimension."""
    values, y = wide(x), scratch(out)
    if y.size:
        np.subtract(values, values.max(axis=dim, keepdims=True), out=y)
        y -= np.log(np.exp(y).sum(axis=dim, keepdims=True))
    store(out, y)


OPS = [
    OpImpl(op="softmax", fn=softmax, dtypes=FLOATS),
    OpImpl(op="log_softmax", fn=log_softmax, dtypes=FLOATS),
]
