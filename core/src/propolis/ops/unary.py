"""Elementwise ops of one tensor, and the gated activations of feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import FLOATS
from propolis.ops._infer import expect
from propolis.ops._infer import same_dtype
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"gate": FLOATS})
def silu_mul(gate: Tensor, up: Tensor, /) -> Meta:
    """
    ``silu(gate) * up`` with ``silu(x) = x / (1 + exp(-x))``, the SwiGLU of Shazeer (2020).

    Args:
        gate: any shape, any float dtype; f16, bf16 and f8 are computed in f32.
        up: same shape and dtype.

    Returns:
        Shape and dtype of ``gate``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes differ.
    """
    same_dtype("silu_mul", gate=gate, up=up)
    expect("silu_mul", gate.shape == up.shape, "gate and up must agree", gate=gate, up=up)
    return gate.shape, gate.dtype
