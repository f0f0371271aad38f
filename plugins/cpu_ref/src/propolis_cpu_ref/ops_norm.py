"""rms_norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import unit_stride
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor


@ieee
def rms_norm(out: Tensor, x: Tensor, weight: Tensor, /, eps: float = 1e-5) -> None:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension."""
    # An element repeated by stride 0 has no BLAS, and numpy's own loop adds one by one.
    values, y = unit_stride(wide(x)), scratch(out)
    mean = np.vecdot(values, values) / values.dtype.type(x.shape[-1])
    scale = 1 / np.sqrt(mean + values.dtype.type(eps))
    np.multiply(values, scale[..., None], out=y)
    y *= wide(weight)
    store(out, y)


OPS = [OpImpl(op="rms_norm", fn=rms_norm, dtypes=FLOATS)]
