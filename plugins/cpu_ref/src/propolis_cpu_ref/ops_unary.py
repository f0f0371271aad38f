"""silu_mul."""

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
from propolis_cpu_ref._threads import grain
from propolis_cpu_ref._threads import over_rows


if TYPE_CHECKING:
    from propolis import Tensor


CACHED = 100_000


@ieee
def silu_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    """``gate / (1 + exp(-gate)) * up``."""
    width = gate.shape[-1] if gate.shape else 1
    count = math.prod(gate.shape[:-1])
    g, u = (wide(t).reshape(count, width) for t in (gate, up))
    y = scratch(out)
    rows = y.reshape(count, width)

    def work(part: slice) -> None:
        # Some rows at a time, so that the passes over them stay in cache.
        step = max(1, CACHED // max(width, 1))
        for start in range(part.start, part.stop, step):
            some = slice(start, min(start + step, part.stop))
            r, x = rows[some], g[some]
            np.negative(x, out=r)
            np.exp(r, out=r)
            r += 1
            np.divide(x, r, out=r)
            r *= u[some]

    over_rows(out.device.threads, count, grain(width), work)
    store(out, y)


OPS = [OpImpl(op="silu_mul", fn=silu_mul, dtypes=FLOATS)]
