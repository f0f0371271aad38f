"""where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import PLAIN


if TYPE_CHECKING:
    from propolis import Tensor


def where(out: Tensor, condition: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a`` where the condition is not 0, else ``b``."""
    out.array[...] = np.where(condition.array != 0, a.array, b.array)


OPS = [OpImpl(op="where", fn=where, dtypes={"a": PLAIN}, in_place=True)]
