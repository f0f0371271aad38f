"""argmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import PLAIN


if TYPE_CHECKING:
    from propolis import Tensor


def argmax(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """Index of the first largest element; NaN is larger than any number."""
    values = x.array
    if x.dtype.is_float and values.dtype.itemsize < 4:
        values = values.astype(np.float32)  # exact; ml_dtypes' own argmax skips NaN
    np.argmax(values, axis=dim, out=out.array)


OPS = [OpImpl(op="argmax", fn=argmax, dtypes=PLAIN)]
