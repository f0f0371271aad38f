"""
Products of matrices.

Of i8 the result is i32, as ``torch._int_mm`` and ONNX's ``MatMulInteger`` give it: sums do not
fit i8, and what is made of them (a scale, a zero point) is for the caller to choose.  It is a
rule of ``matmul`` and ``linear``, not an op of its own, because all else about them is the same:
shapes, batches, strides, the bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import FLOATS
from propolis.dtypes import DType
from propolis.dtypes import i8
from propolis.dtypes import i32
from propolis.errors import DTypeError
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


_MULTIPLIED = FLOATS | {i8}


def _summed(dtype: DType) -> DType:
    """The dtype that products of numbers of ``dtype`` are given in."""
    return i32 if dtype is i8 else dtype


@op({"a": _MULTIPLIED}, tolerance=ROUNDED, magnitude=of_absolutes)
def matmul(a: Tensor, b: Tensor, /) -> Meta:
    """
    ``a @ b`` over the last two dimensions; leading ones broadcast.

    Of i8 it is exact, and wraps around modulo 2**32, as numpy's int32: no sum of fewer than
    131,072 terms is as large as that.

    Args:
        a: (..., m, k), a float dtype, sums in f32 or wider; or i8, sums in i32.
        b: (..., k, n), same dtype.

    Returns:
        (..., m, n), dtype of ``a``; of i8 i32.

    Raises:
        DTypeError: the dtypes differ, or are neither floats nor i8.
        ShapeError: the shapes do not fit together.
    """
    same_dtype("matmul", a=a, b=b)
    fits = len(a.shape) >= 2 and len(b.shape) >= 2 and a.shape[-1] == b.shape[-2]
    expect("matmul", fits, "a is (..., m, k), b is (..., k, n)", a=a, b=b)
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    return (*batch, a.shape[-2], b.shape[-1]), _summed(a.dtype)


@op({"x": _MULTIPLIED}, tolerance=ROUNDED, magnitude=of_absolutes)
def linear(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> Meta:
    """
    ``x @ w.T + bias``: a linear layer, weights as checkpoints store them.

    Of i8 it is exact, and wraps around modulo 2**32, as :func:`matmul` does.

    Args:
        x: (..., in_features), a float dtype, sums in f32 or wider; or i8, sums in i32.
        w: (out_features, in_features), same dtype.
        bias: (out_features,), dtype of the result, or None.

    Returns:
        (..., out_features), dtype of ``x``; of i8 i32.

    Raises:
        DTypeError: the dtypes differ, or are neither floats nor i8.
        ShapeError: the shapes do not fit together.
    """
    same_dtype("linear", x=x, w=w)
    fits = len(w.shape) == 2 and len(x.shape) >= 1 and x.shape[-1] == w.shape[1]
    expect("linear", fits, "x is (..., in), w is (out, in)", x=x, w=w)
    result = _summed(x.dtype)
    if bias is not None:
        if bias.dtype is not result:
            given = f"x is {x.dtype}, bias is {bias.dtype}"
            msg = f"linear: {given}; supported: a bias in {result}; ops.cast converts"
            raise DTypeError(msg)
        expect("linear", bias.shape == w.shape[:1], "bias is (out,)", w=w, bias=bias)
    return (*x.shape[:-1], w.shape[0]), result


@linear.decomposes(lambda x: {matmul: (x,), add: (_summed(x),)})
def _linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    if len(x.shape) == 1:
        out, x = out.unsqueeze(0), x.unsqueeze(0)
    if bias is None:
        matmul.into(out, x, w.transpose(0, 1))
    else:
        add.into(out, matmul(x, w.transpose(0, 1)), bias)
