"""Mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import BLOCKS
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._indices import check_range
from propolis_cpu_ref.ops_quantized import values_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor


@ieee
def moe_gate(
    weights: Tensor,
    experts: Tensor,
    logits: Tensor,
    /,
    k: int,
    *,
    renormalize: bool = True,
) -> None:
    """Softmax over all experts; the likeliest, and their weights."""
    values = wide(logits)
    shares = np.exp(values - values.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    best = np.argsort(-values, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(shares, best, -1)
    if renormalize:
        chosen /= chosen.sum(axis=-1, keepdims=True)
    experts.array[...] = best
    store(weights, chosen)


@ieee
def moe_linear(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, /) -> None:
    """Each token times its experts' weights; of 16 bits, those of an expert that is used, once."""

    def dense(expert: int) -> np.ndarray:
        one: np.ndarray = wide(w.narrow(0, expert, 1))[0]
        return one

    _by_expert("moe_linear", out, x, experts, dense, w.shape[0])


@ieee
def moe_qmatmul(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, /) -> None:
    """The same with weights in a block format; those of an expert that is used, once."""

    def dense(expert: int) -> np.ndarray:
        return values_of(w.narrow(0, expert, 1)).reshape(w.shape[1:])

    _by_expert("moe_qmatmul", out, x, experts, dense, w.shape[0])


def _by_expert(
    op: str,
    out: Tensor,
    x: Tensor,
    experts: Tensor,
    weights: Callable[[int], np.ndarray],
    count: int,
) -> None:
    """One product for each expert, of all the rows that chose it."""
    chosen = experts.array
    check_range(op, "expert", chosen, count, "the weights")
    y = scratch(out)
    rows = np.broadcast_to(wide(x), (*chosen.shape, x.shape[2]))
    for expert in np.unique(chosen):
        mine = chosen == expert
        y[mine] = rows[mine] @ weights(int(expert)).T
    store(out, y)


OPS = [
    OpImpl(op="moe_gate", fn=moe_gate, dtypes=FLOATS),
    OpImpl(op="moe_linear", fn=moe_linear, dtypes=FLOATS),
    OpImpl(
        op="moe_qmatmul",
        fn=moe_qmatmul,
        dtypes={"x": FLOATS, "w": BLOCKS},
        notes="exact: dequantises the experts that are used, at each call",
    ),
]
