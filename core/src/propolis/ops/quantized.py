"""Ops on the GGUF block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis.dtypes import FLOATS
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.ops.matmul import linear
from propolis.ops.norm import add_rms_norm
from propolis.ops.unary import silu_mul
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.spec import pair_op
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


@op({"x": BLOCKS}, tolerance=dict.fromkeys(dtypes.ALL, EXACT))
def dequantize(x: Tensor, /, dtype: DType = dtypes.f32) -> Meta:
    """
    The values of a tensor in a GGUF block format.

    Values are defined in f32, operation by operation, by ggml's
    ``dequantize_row_*``; other output dtypes round them once.

    Args:
        x: any shape, a block format.
        dtype: a float dtype.

    Returns:
        Shape of ``x``, the wanted dtype.

    Raises:
        DTypeError: ``x`` is not in a block format, or ``dtype`` is not a float.
    """
    if dtype not in FLOATS:
        msg = f"dequantize: to {dtype!r}; supported: float dtypes, as dtypes.f32"
        raise DTypeError(msg)
    return x.shape, dtype


@op({"x": FLOATS})
def quantize(x: Tensor, dtype: DType, /) -> Meta:
    """
    A tensor in a GGUF block format, rounded to the nearest quants.

    q4_0 q4_1 q5_0 q5_1 q8_0 tq1_0 tq2_0 mxfp4 are byte for byte what the gguf library
    writes; q8_1 and q8_k follow ggml's reference; the other K formats, iq4_nl and iq4_xs
    choose each group's scale from its range, where ggml searches further.

    Args:
        x: (..., width), a float dtype, width a multiple of the block size.
        dtype: a block format.

    Returns:
        Shape of ``x``, the wanted dtype.  Infinities and NaN have no quants: what their
        block becomes is not defined.  Nor is it where a scale has no inverse in f32, or of
        mxfp4 no exponent: a block whose largest magnitude is below 2**-125, but not 0.

    Raises:
        DTypeError: ``x`` is not a float, ``dtype`` not a block format, or a row is not
            a whole number of blocks.
    """
    if dtype not in BLOCKS:
        known = ", ".join(d.name for d in dtypes.ALL if d in BLOCKS)
        msg = f"quantize: to {dtype!r}; supported: {known}"
        raise DTypeError(msg)
    dtype.nbytes(x.shape[-1] if x.shape else 1)
    return x.shape, dtype


@op({"x": FLOATS, "w": BLOCKS}, tolerance=ROUNDED, magnitude=of_absolutes)
def qmatmul(x: Tensor, w: Tensor, /) -> Meta:
    """
    ``x @ dequantize(w).T``: a linear layer with weights in a GGUF block format.

    An implementation that rounds activations too (to 8 bits, as ggml does) is not
    exact and says so in its notes.  A block's scale and offset may be applied to sums of
    activations, so an infinite activation gives an infinity or NaN, whichever.

    Args:
        x: (..., in_features), a float dtype; sums are in f32 or wider.
        w: (out_features, in_features), a block format along in_features.

    Returns:
        (..., out_features), dtype of ``x``.

    Raises:
        DTypeError: x is not a float or w not in a block format.
        ShapeError: the shapes do not fit together.
    """
    fits = len(w.shape) == 2 and len(x.shape) >= 1 and x.shape[-1] == w.shape[1]
    expect("qmatmul", fits, "x is (..., in), w is (out, in)", x=x, w=w)
    return (*x.shape[:-1], w.shape[0]), x.dtype


@qmatmul.decomposes(lambda x, w: {dequantize: (w,), linear: (x,)})
def _qmatmul(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    linear.into(out, x, dequantize(w, x.dtype))


def _product_terms(
    f: Callable[..., Any],
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> tuple[None, Array]:
    """The product's; a gate, at most as steep as 1.1, passes on what both factors lost."""
    total, _ = f(x, residual, weight, w, eps)
    normed = total / np.sqrt((total * total).mean(-1, keepdims=True) + eps) * weight
    terms = np.abs(normed) @ np.abs(w).T
    if not gated:
        return None, terms
    gate, up = np.split(normed @ w.T, 2, axis=-1)
    of_gate, of_up = np.split(terms, 2, axis=-1)
    return None, 1.1 * of_gate * np.abs(up) + np.abs(gate) * of_up


@pair_op(
    {"x": {dtypes.f32}, "w": BLOCKS},
    tolerance=ROUNDED,
    magnitude=_product_terms,
)
def add_rms_norm_qmatmul(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> tuple[Meta, Meta]:
    """
    ``h = x + residual`` and ``qmatmul(rms_norm(h, weight, eps), w)``.

    Each half of a decoder's layer begins so.

    An implementation that rounds activations too is not exact, as one of ``qmatmul``.

    Args:
        x: (..., width), f32.
        residual: same shape and dtype.
        weight: (width,), f32.
        w: (out_features, width), a block format along width.
        eps: added to the mean square.
        gated: the rows of ``w`` are two halves, and the result ``silu_mul`` of their products.

    Returns:
        ``h``, as ``x``, and (..., out_features), half of them where it is gated, f32.

    Raises:
        DTypeError: the dtypes differ or are not f32, or w is not in a block format.
        ShapeError: the shapes do not fit together.
    """
    same_dtype("add_rms_norm_qmatmul", x=x, residual=residual, weight=weight)
    fits = len(x.shape) >= 1 and x.shape == residual.shape and weight.shape == x.shape[-1:]
    fits = fits and len(w.shape) == 2 and w.shape[1] == x.shape[-1]
    rule = "x and residual are (..., width), weight is (width,), w is (out, width)"
    expect("add_rms_norm_qmatmul", fits, rule, x=x, residual=residual, weight=weight, w=w)
    if gated:
        even = w.shape[0] % 2 == 0
        expect("add_rms_norm_qmatmul", even, "gated, w has two halves of rows", w=w)
    out = w.shape[0] // 2 if gated else w.shape[0]
    return (x.shape, x.dtype), ((*x.shape[:-1], out), x.dtype)


@add_rms_norm_qmatmul.decomposes(lambda x, w: {add_rms_norm: (x,), qmatmul: (x, w), silu_mul: (x,)})
def _add_rms_norm_qmatmul(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> None:
    normed = x.device.empty(x.shape, x.dtype)
    add_rms_norm.into((total, normed), x, residual, weight, eps)
    if not gated:
        qmatmul.into(out, normed, w)
        return
    both, last = qmatmul(normed, w), len(x.shape) - 1
    halves = (both.narrow(last, start, out.shape[-1]) for start in (0, out.shape[-1]))
    silu_mul.into(out, *halves)
