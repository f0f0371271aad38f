"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import FLOATS
from propolis.ops.binary import add
from propolis.opspec.infer import broadcast
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"a": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes)
def matmul(a: Tensor, b: Tensor, /) -> Meta:
    """
    ``a @ b`` over the last two dimensions; leading ones broadcast.

    Args:
        a: (..., m, k), a float dtype; sums are in f32 or wider.
        b: (..., k, n), same dtype.

    Returns:
        (..., m, n), dtype of ``a``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
    """
    same_dtype("matmul", a=a, b=b)
    fits = len(a.shape) >= 2 and len(b.shape) >= 2 and a.shape[-1] == b.shape[-2]
    expect("matmul", fits, "a is (..., m, k), b is (..., k, n)", a=a, b=b)
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    return (*batch, a.shape[-2], b.shape[-1]), a.dtype


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes)
def linear(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> Meta:
    """
    ``x @ w.T + bias``: a linear layer, weights as checkpoints store them.

    Args:
        x: (..., in_features), a float dtype; sums are in f32 or wider.
        w: (out_features, in_features), same dtype.
        bias: (out_features,), same dtype, or None.

    Returns:
        (..., out_features), dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
    """
    same_dtype("linear", x=x, w=w)
    fits = len(w.shape) == 2 and len(x.shape) >= 1 and x.shape[-1] == w.shape[1]
    expect("linear", fits, "x is (..., in), w is (out, in)", x=x, w=w)
    if bias is not None:
        same_dtype("linear", x=x, bias=bias)
        expect("linear", bias.shape == w.shape[:1], "bias is (out,)", w=w, bias=bias)
    return (*x.shape[:-1], w.shape[0]), x.dtype


@linear.decomposes(lambda x: {matmul: (x,), add: (x,)})
def _linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    if len(x.shape) == 1:
        out, x = out.unsqueeze(0), x.unsqueeze(0)
    if bias is None:
        matmul.into(out, x, w.transpose(0, 1))
    else:
        add.into(out, matmul(x, w.transpose(0, 1)), bias)
