"""Ops on the GGUF block formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis.dtypes import FLOATS
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.ops.fill import assign
from propolis.ops.matmul import linear
from propolis.ops.norm import add_rms_norm
from propolis.ops.rope import expect_tables
from propolis.ops.rope import rope
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


def _normed_terms(
    f: Callable[..., Any],
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    eps: float,
) -> tuple[Array, Array]:
    """The norm, and the terms of its product: magnitudes of both factors."""
    total, _ = f(x, residual, weight, w, eps=eps)
    normed = total / np.sqrt((total * total).mean(-1, keepdims=True) + eps) * weight
    return normed, np.abs(normed) @ np.abs(w).T


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
    normed, terms = _normed_terms(f, x, residual, weight, w, eps)
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


def _turned_terms(
    f: Callable[..., Any],
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> tuple[None, Array]:
    """The product's; of what is rotated, of both elements of a pair."""

    def without(*given: Array, eps: float) -> Any:
        tables = positions, cos, sin
        return f(*given, *tables, eps, heads=heads, head_dim=head_dim, interleaved=interleaved)

    _, terms = _normed_terms(without, x, residual, weight, w, eps)
    pairs = cos.shape[1]
    first = np.arange(pairs) * 2 if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    each = terms.reshape(*terms.shape[:-1], terms.shape[-1] // head_dim, head_dim).copy()
    a, b = each[..., :heads, first], each[..., :heads, second]
    c, s = np.abs(cos[positions])[:, :, None], np.abs(sin[positions])[:, :, None]
    each[..., :heads, first], each[..., :heads, second] = a * c + b * s, a * s + b * c
    return None, each.reshape(terms.shape)


@pair_op(
    {"x": {dtypes.f32}, "w": BLOCKS},
    tolerance=ROUNDED,
    magnitude=_turned_terms,
)
def add_rms_norm_qmatmul_rope(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> tuple[Meta, Meta]:
    """
    ``add_rms_norm_qmatmul``, and ``rope`` of the first heads of the product.

    A decoder's layer makes queries, keys and values so, all of them by one product.

    An implementation that rounds activations too is not exact, as one of ``qmatmul``.

    Args:
        x: (batch, tokens, width), f32.
        residual: same shape and dtype.
        weight: (width,), f32.
        w: (out_features, width), a block format along width.
        positions: (batch, tokens), i32, each in [0, rows of the tables).
        cos: (rows, r/2), f32, with ``r <= head_dim``, as ``rope`` has it.
        sin: same shape and dtype as ``cos``.
        eps: added to the mean square.
        heads: how many of the product's heads are rotated, the first ones; others are values.
        head_dim: elements of each, which divide ``out_features``.
        interleaved: pairs are neighbours; see ``rope``.

    Returns:
        ``x + residual``, as ``x``, and (batch, tokens, out_features), f32.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: the product has no such heads, or a position is outside the tables (CPU, and GPU
            in debug mode).
    """
    name = "add_rms_norm_qmatmul_rope"
    same_dtype(name, x=x, residual=residual, weight=weight)
    expect_tables(name, cos, sin)
    if positions.dtype is not dtypes.i32:
        msg = f"{name}: positions are {positions.dtype}; supported: i32; ops.cast converts"
        raise DTypeError(msg)
    fits = (
        len(x.shape) == 3
        and x.shape == residual.shape
        and weight.shape == x.shape[-1:]
        and len(w.shape) == 2
        and w.shape[1] == x.shape[-1]
        and positions.shape == x.shape[:2]
        and len(cos.shape) == 2
        and cos.shape == sin.shape
    )
    rule = (
        "x and residual are (batch, tokens, width), weight is (width,), w is (out, width), "
        "positions (batch, tokens), cos and sin are alike"
    )
    given = {"x": x, "residual": residual, "weight": weight, "w": w}
    expect(name, fits, rule, **given, positions=positions, cos=cos, sin=sin)
    if head_dim < max(1, 2 * cos.shape[1]) or w.shape[0] % head_dim:
        msg = (
            f"{name}: heads of {head_dim} of a product of {w.shape[0]}, tables of {cos.shape[1]} "
            f"pairs; supported: head_dim that divides the product, and has all pairs"
        )
        raise OpError(msg)
    if not 0 <= heads <= w.shape[0] // head_dim:
        msg = f"{name}: rotates {heads} heads; supported: 0 to {w.shape[0] // head_dim} of them"
        raise OpError(msg)
    return (x.shape, x.dtype), ((*x.shape[:-1], w.shape[0]), x.dtype)


@add_rms_norm_qmatmul_rope.decomposes(
    lambda x, w: {add_rms_norm_qmatmul: (x, w), rope: (x, dtypes.i32), assign: (x,)}
)
def _add_rms_norm_qmatmul_rope(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    head_dim: int,
    interleaved: bool = False,
) -> None:
    add_rms_norm_qmatmul.into((total, out), x, residual, weight, w, eps)
    turned = out.narrow(2, 0, heads * head_dim).unflatten(2, head_dim)
    assign(turned, rope(turned, positions, cos, sin, interleaved=interleaved))
