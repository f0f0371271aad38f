"""silu_mul."""

from __future__ import annotations

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


def silu_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    """``gate / (1 + exp(-gate)) * up``."""
    width = gate.shape[-1] if gate.shape else 1
    g, u = (wide(t).reshape(-1, width) for t in (gate, up))
    y = scratch(out)
    rows = y.reshape(-1, width)

    @ieee
    def work(part: slice) -> None:
        r, x = rows[part], g[part]
        np.negative(x, out=r)
        np.exp(r, out=r)
        r += 1
        np.divide(x, r, out=r)
        r *= u[part]

    over_rows(out.device.threads, len(rows), grain(width), work)
    store(out, y)


OPS = [OpImpl(op="silu_mul", fn=silu_mul, dtypes=FLOATS)]
