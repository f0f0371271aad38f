"""Ops on the GGUF block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis.dtypes import FLOATS
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.ops.matmul import linear
from propolis.opspec.infer import expect
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from collections.abc import Callable

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


def of_scaled(f: Callable[..., Any], x: Array, w: Array, /, *indices: Array) -> Any:
    """Terms of a product with weights in blocks whose ``x`` may be rounded to 8 bits."""
    return f(scaled_together(x), abs(w), *indices)


def scaled_together(x: Array) -> Array:
    """
    Magnitudes of elements, 32 of which share a scale: as if none were below a third of the largest.

    All are rounded by up to a 254th of that, however small they are.
    """
    size = abs(x)
    blocks = size.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    return np.asarray(np.maximum(blocks, blocks.max(-1, keepdims=True) / 3).reshape(x.shape))


@op({"x": FLOATS, "w": BLOCKS}, tolerance=ROUNDED, magnitude=of_absolutes, rounded=of_scaled)
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
