"""Products of the norm of a sum, as each half of a decoder's layer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.ops.fill import assign
from propolis.ops.matmul import linear
from propolis.ops.norm import add_rms_norm
from propolis.ops.quantized import qmatmul
from propolis.ops.rope import expect_tables
from propolis.ops.rope import rope
from propolis.ops.unary import silu_mul
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import Meta
from propolis.opspec.spec import Op
from propolis.opspec.spec import pair_op
from propolis.opspec.tolerance import ROUNDED


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor

_PLAIN: Final = {dtypes.f32, dtypes.f16, dtypes.bf16}

# Of 16 bits the norm is rounded before it is multiplied, and the product before it is gated or
# rotated: two half ulps of each term, and as much for what was next to a tie.
_LOSS: Final = {dtypes.f16: 2.0**-9, dtypes.bf16: 2.0**-6}

_SUMMED: Final = {
    "residual": "same shape and dtype.",
    "weight": "(width,), same dtype.",
    "eps": "added to the mean square.",
    "gated": "the rows of ``w`` are two halves, and the result ``silu_mul`` of their products.",
    "positions": "(batch, tokens), i32, each in [0, rows of the tables).",
    "cos": "(rows, r/2), f32, with ``r <= head_dim``, as ``rope`` has it.",
    "sin": "same shape and dtype as ``cos``.",
    "heads": "how many of the product's heads are rotated, the first ones; others are values.",
    "head_dim": "elements of each, which divide ``out_features``.",
    "interleaved": "pairs are neighbours; see ``rope``.",
}


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


def _product_of(
    name: str, x: Tensor, residual: Tensor, weight: Tensor, w: Tensor, *, gated: bool
) -> tuple[Meta, Meta]:
    """What both of an op's results are, where its arguments fit."""
    same_dtype(name, x=x, residual=residual, weight=weight)
    fits = len(x.shape) >= 1 and x.shape == residual.shape and weight.shape == x.shape[-1:]
    fits = fits and len(w.shape) == 2 and w.shape[1] == x.shape[-1]
    rule = "x and residual are (..., width), weight is (width,), w is (out, width)"
    expect(name, fits, rule, x=x, residual=residual, weight=weight, w=w)
    if gated:
        expect(name, w.shape[0] % 2 == 0, "gated, w has two halves of rows", w=w)
    out = w.shape[0] // 2 if gated else w.shape[0]
    return (x.shape, x.dtype), ((*x.shape[:-1], out), x.dtype)


def _of_product(
    product: Op[Any],
    outs: tuple[Tensor, Tensor],
    given: tuple[Tensor, ...],
    eps: float,
    gated: bool,
) -> None:
    total, out = outs
    x, residual, weight, w = given
    normed = x.device.empty(x.shape, x.dtype)
    add_rms_norm.into((total, normed), x, residual, weight, eps)
    if not gated:
        product.into(out, normed, w)
        return
    both, last = product(normed, w), len(x.shape) - 1
    halves = (both.narrow(last, start, out.shape[-1]) for start in (0, out.shape[-1]))
    silu_mul.into(out, *halves)


def _turned_of(
    name: str, given: tuple[Tensor, ...], tables: tuple[Tensor, ...], heads: int, head_dim: int
) -> tuple[Meta, Meta]:
    """What both of an op's results are, whose heads are rotated, where its arguments fit."""
    x, _, _, w = given
    positions, cos, sin = tables
    metas = _product_of(name, *given, gated=False)
    expect_tables(name, cos, sin)
    if positions.dtype is not dtypes.i32:
        msg = f"{name}: positions are {positions.dtype}; supported: i32; ops.cast converts"
        raise DTypeError(msg)
    fits = len(x.shape) == 3 and positions.shape == x.shape[:2]
    fits = fits and len(cos.shape) == 2 and cos.shape == sin.shape
    rule = "x is (batch, tokens, width), positions (batch, tokens), cos and sin are alike"
    expect(name, fits, rule, x=x, positions=positions, cos=cos, sin=sin)
    if head_dim < max(1, 2 * cos.shape[1]) or w.shape[0] % head_dim:
        msg = (
            f"{name}: heads of {head_dim} of a product of {w.shape[0]}, tables of {cos.shape[1]} "
            f"pairs; supported: head_dim that divides the product, and has all pairs"
        )
        raise OpError(msg)
    if not 0 <= heads <= w.shape[0] // head_dim:
        msg = f"{name}: rotates {heads} heads; supported: 0 to {w.shape[0] // head_dim} of them"
        raise OpError(msg)
    return metas


def _turn(
    out: Tensor, tables: tuple[Tensor, ...], heads: int, head_dim: int, interleaved: bool
) -> None:
    turned = out.narrow(2, 0, heads * head_dim).unflatten(2, head_dim)
    assign(turned, rope(turned, *tables, interleaved=interleaved))


@pair_op(
    {"x": {dtypes.f32}, "w": BLOCKS}, tolerance=ROUNDED, magnitude=_product_terms, shared=_SUMMED
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

    An implementation that rounds activations too is not exact, as one of ``qmatmul``.

    Args:
        x: (..., width), f32.
        w: (out_features, width), a block format along width.

    Returns:
        ``h``, as ``x``, and (..., out_features), half of them where it is gated, dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not f32, or w is not in a block format.
        ShapeError: the shapes do not fit together.
    """
    return _product_of("add_rms_norm_qmatmul", x, residual, weight, w, gated=gated)


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
    _of_product(qmatmul, (total, out), (x, residual, weight, w), eps, gated)


@pair_op(
    {"x": {dtypes.f32}, "w": BLOCKS}, tolerance=ROUNDED, magnitude=_turned_terms, shared=_SUMMED
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
        w: (out_features, width), a block format along width.

    Returns:
        ``x + residual``, as ``x``, and (batch, tokens, out_features), dtype of ``x``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: the product has no such heads; or, on the CPU, a position is outside the tables:
            a GPU gives zeros there.
    """
    name, given = "add_rms_norm_qmatmul_rope", (x, residual, weight, w)
    return _turned_of(name, given, (positions, cos, sin), heads, head_dim)


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
    _turn(out, (positions, cos, sin), heads, head_dim, interleaved)


@pair_op({"x": _PLAIN}, tolerance=ROUNDED, loss=_LOSS, magnitude=_product_terms, shared=_SUMMED)
def add_rms_norm_linear(
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
    ``h = x + residual`` and ``linear(rms_norm(h, weight, eps), w)``.

    ``h`` is rounded to the dtype before it is normalised; the norm may be, and the product before
    it is gated, so that what is gated is not defined where it is beyond the dtype.

    Args:
        x: (..., width), f32, f16 or bf16.
        w: (out_features, width), same dtype.

    Returns:
        ``h``, as ``x``, and (..., out_features), half of them where it is gated, dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ, or are none of these.
        ShapeError: the shapes do not fit together.
    """
    same_dtype("add_rms_norm_linear", x=x, w=w)
    return _product_of("add_rms_norm_linear", x, residual, weight, w, gated=gated)


@add_rms_norm_linear.decomposes(lambda x: {add_rms_norm: (x,), linear: (x,), silu_mul: (x,)})
def _add_rms_norm_linear(
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
    _of_product(linear, (total, out), (x, residual, weight, w), eps, gated)


@pair_op({"x": _PLAIN}, tolerance=ROUNDED, loss=_LOSS, magnitude=_turned_terms, shared=_SUMMED)
def add_rms_norm_linear_rope(
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
    ``add_rms_norm_linear``, and ``rope`` of the first heads of the product.

    A decoder's layer makes queries, keys and values so, all of them by one product.

    What is rounded in between is as there; the product may be before it is rotated, so that what
    is rotated is not defined where it is beyond the dtype.

    Args:
        x: (batch, tokens, width), f32, f16 or bf16.
        w: (out_features, width), same dtype.

    Returns:
        ``x + residual``, as ``x``, and (batch, tokens, out_features), dtype of ``x``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: the product has no such heads; or, on the CPU, a position is outside the tables:
            a GPU gives zeros there.
    """
    name, given = "add_rms_norm_linear_rope", (x, residual, weight, w)
    same_dtype(name, x=x, w=w)
    return _turned_of(name, given, (positions, cos, sin), heads, head_dim)


@add_rms_norm_linear_rope.decomposes(
    lambda x: {add_rms_norm_linear: (x,), rope: (x, dtypes.i32), assign: (x,)}
)
def _add_rms_norm_linear_rope(
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
    add_rms_norm_linear.into((total, out), x, residual, weight, w, eps)
    _turn(out, (positions, cos, sin), heads, head_dim, interleaved)
