"""Conversion between dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"x": PLAIN}, elementwise=True, tolerance=dict.fromkeys(dtypes.ALL, EXACT))
def cast(x: Tensor, dtype: DType, /) -> Meta:
    """
    The same values in another plain dtype.

    Floats round to nearest even.  Float to integer truncates toward zero,
    saturates at the ends of the range and turns NaN into 0.  What is too large for a
    float is infinite; in f8e4m3, which has no infinity, NaN, as ml_dtypes and OCP FP8
    do.  Integer to integer wraps around, as numpy does.

    Args:
        x: any shape, any plain dtype.
        dtype: a plain dtype.

    Returns:
        Shape of ``x``, the wanted dtype.

    Raises:
        DTypeError: one of them is a block format (see ``dequantize``).
    """
    if dtype not in PLAIN:
        msg = (
            f"cast: to {dtype!r}; supported: plain dtypes, as dtypes.f32; block formats are made "
            f"by quantize"
        )
        raise DTypeError(msg)
    return x.shape, dtype
