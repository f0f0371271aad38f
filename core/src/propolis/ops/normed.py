"""Products of the norm of a sum, as each half of a decoder's layer begins."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis.ops._normed import PLAIN
from propolis.ops._normed import keep
from propolis.ops._normed import kept_of
from propolis.ops._normed import kept_terms
from propolis.ops._normed import of_product
from propolis.ops._normed import product_of
from propolis.ops._normed import product_terms
from propolis.ops._normed import turn
from propolis.ops._normed import turned_of
from propolis.ops._normed import turned_terms
from propolis.ops.fill import assign
from propolis.ops.matmul import linear
from propolis.ops.norm import add_rms_norm
from propolis.ops.quantized import qmatmul
from propolis.ops.rope import rope
from propolis.ops.rope import rope_kv_append
from propolis.ops.unary import silu_mul
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import Meta
from propolis.opspec.spec import pair_op
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import Judged


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.tensor import Tensor

# Of 16 bits the norm is rounded before it is multiplied, and the product before it is gated or
# rotated: two half ulps of each term, and as much for what was next to a tie.
_LOSS: Final = {dtypes.f16: 2.0**-9, dtypes.bf16: 2.0**-6}


def _of_blocks(terms: Callable[..., Any]) -> Judged:
    """How products with weights in blocks are judged, whose activations may be rounded."""
    return {"tolerance": ROUNDED, "magnitude": terms, "rounded": partial(terms, scaled=True)}


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

_KEPT: Final = {
    **_SUMMED,
    "cache": "(batch, capacity, 2 * kv_heads, head_dim), f32, f16 or bf16; keys, then values.",
    "slots": "(batch, tokens), i32, each in [0, capacity): where keys and values go.",
    "heads": "of the product the queries', the first ones; those of keys and values follow.",
}


@pair_op({"x": {dtypes.f32}, "w": BLOCKS}, shared=_SUMMED, **_of_blocks(product_terms))
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
    return product_of("add_rms_norm_qmatmul", x, residual, weight, w, gated=gated)


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
    of_product(qmatmul, (total, out), (x, residual, weight, w), eps, gated)


@pair_op({"x": {dtypes.f32}, "w": BLOCKS}, shared=_SUMMED, **_of_blocks(turned_terms))
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
    return turned_of(name, given, (positions, cos, sin), heads, head_dim)


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
    turn(out, (positions, cos, sin), heads, head_dim, interleaved)


@pair_op({"x": PLAIN}, tolerance=ROUNDED, loss=_LOSS, magnitude=product_terms, shared=_SUMMED)
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
    return product_of("add_rms_norm_linear", x, residual, weight, w, gated=gated)


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
    of_product(linear, (total, out), (x, residual, weight, w), eps, gated)


@pair_op({"x": PLAIN}, tolerance=ROUNDED, loss=_LOSS, magnitude=turned_terms, shared=_SUMMED)
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
    return turned_of(name, given, (positions, cos, sin), heads, head_dim)


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
    turn(out, (positions, cos, sin), heads, head_dim, interleaved)


@pair_op({"x": {dtypes.f32}, "w": BLOCKS}, mutates=True, shared=_KEPT, **_of_blocks(kept_terms))
def add_rms_norm_qmatmul_rope_kv_append(
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> tuple[Meta, Meta]:
    """
    ``add_rms_norm_qmatmul_rope`` whose keys and values go into a cache, in place.

    What a decoder's layer does before its attention; as ``rope_kv_append`` keeps them.

    An implementation that rounds activations too is not exact, as one of ``qmatmul``.

    Args:
        x: (batch, tokens, width), f32.
        w: ((heads + 2 * kv_heads) * head_dim, width), a block format along width.

    Returns:
        ``x + residual``, as ``x``, and the queries, (batch, tokens, heads, head_dim), dtype of
        ``x``, which is f32 or the cache's.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: the product has other heads; or, on the CPU, a slot is outside the cache, where a
            GPU writes nothing, or a position outside the tables, where it gives zeros.
    """
    name, given = "add_rms_norm_qmatmul_rope_kv_append", (x, residual, weight, w)
    return kept_of(name, cache, given, slots, (positions, cos, sin), heads)


@add_rms_norm_qmatmul_rope_kv_append.decomposes(
    lambda x, w: {
        add_rms_norm_qmatmul: (x, w),
        rope: (x, dtypes.i32),
        rope_kv_append: (x,),
    }
)
def _add_rms_norm_qmatmul_rope_kv_append(
    total: Tensor,
    out: Tensor,
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> None:
    del heads  # as many as the output has
    rows, tables = (x, residual, weight, w), (positions, cos, sin)
    outs = total, out
    keep(add_rms_norm_qmatmul, outs, cache, rows, slots, tables, eps, interleaved)


@pair_op(
    {"x": PLAIN},
    mutates=True,
    tolerance=ROUNDED,
    loss=_LOSS,
    magnitude=kept_terms,
    shared=_KEPT,
)
def add_rms_norm_linear_rope_kv_append(
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> tuple[Meta, Meta]:
    """
    ``add_rms_norm_linear_rope`` whose keys and values go into a cache, in place.

    What a decoder's layer does before its attention; as ``rope_kv_append`` keeps them.

    What is rounded in between is as there; the product may be before it is rotated, so that what
    is rotated is not defined where it is beyond the dtype.

    Args:
        x: (batch, tokens, width), f32, f16 or bf16.
        w: ((heads + 2 * kv_heads) * head_dim, width), same dtype.

    Returns:
        ``x + residual``, as ``x``, and the queries, (batch, tokens, heads, head_dim), dtype of
        ``x``, which is f32 or the cache's.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: the product has other heads; or, on the CPU, a slot is outside the cache, where a
            GPU writes nothing, or a position outside the tables, where it gives zeros.
    """
    name, given = "add_rms_norm_linear_rope_kv_append", (x, residual, weight, w)
    same_dtype(name, x=x, w=w)
    return kept_of(name, cache, given, slots, (positions, cos, sin), heads)


@add_rms_norm_linear_rope_kv_append.decomposes(
    lambda x: {add_rms_norm_linear: (x,), rope: (x, dtypes.i32), rope_kv_append: (x,)}
)
def _add_rms_norm_linear_rope_kv_append(
    total: Tensor,
    out: Tensor,
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> None:
    del heads  # as many as the output has
    rows, tables = (x, residual, weight, w), (positions, cos, sin)
    outs = total, out
    keep(add_rms_norm_linear, outs, cache, rows, slots, tables, eps, interleaved)
