"""add, mul."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import PLAIN
from propolis_cpu_ref._compute import ieee


if TYPE_CHECKING:
    from propolis import Tensor


@ieee
def add(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """Elementwise sum; f16, bf16 and f8 are added in f32 and rounded once."""
    np.add(a.array, b.array, out=out.array)


@ieee
def mul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """Elementwise product; f16, bf16 and f8 are multiplied in f32 and rounded once."""
    np.multiply(a.array, b.array, out=out.array)


OPS = [
    OpImpl(op="add", fn=add, dtypes=PLAIN, in_place=True),
    OpImpl(op="mul", fn=mul, dtypes=PLAIN, in_place=True),
]
