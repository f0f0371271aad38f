"""Normalisation layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import FLOATS
from propolis.ops._infer import expect
from propolis.ops._infer import same_dtype
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"x": FLOATS})
def rms_norm(x: Tensor, weight: Tensor, /, eps: float = 1e-5) -> Meta:
    """
    ``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension (Zhang, Sennrich 2019).

    Args:
        x: (..., width), a float dtype; computed in f32 or wider.
        weight: (width,), same dtype.
        eps: added to the mean square.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
    """
    same_dtype("rms_norm", x=x, weight=weight)
    fits = len(x.shape) >= 1 and weight.shape == x.shape[-1:]
    expect("rms_norm", fits, "x is (..., width), weight is (width,)", x=x, weight=weight)
    return x.shape, x.dtype
