"""What ops of :mod:`propolis.ops.normed` share: what fits, how parts do it, the sizes of terms."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.ops.fill import assign
from propolis.ops.norm import add_rms_norm
from propolis.ops.quantized import scaled_together
from propolis.ops.rope import expect_tables
from propolis.ops.rope import rope
from propolis.ops.rope import rope_kv_append
from propolis.ops.unary import silu_mul
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.opspec.spec import Meta
    from propolis.opspec.spec import Op
    from propolis.opspec.spec import PairOp
    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor

PLAIN: Final = {dtypes.f32, dtypes.f16, dtypes.bf16}


def product_of(
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


def of_product(
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


def turned_of(
    name: str, given: tuple[Tensor, ...], tables: tuple[Tensor, ...], heads: int, head_dim: int
) -> tuple[Meta, Meta]:
    """What both of an op's results are, whose heads are rotated, where its arguments fit."""
    x, _, _, w = given
    positions, cos, sin = tables
    metas = product_of(name, *given, gated=False)
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


def kept_of(
    name: str,
    cache: Tensor,
    given: tuple[Tensor, ...],
    slots: Tensor,
    tables: tuple[Tensor, ...],
    heads: int,
) -> tuple[Meta, Meta]:
    """What an op gives beside what it keeps in a cache, where its arguments fit."""
    x, _, _, w = given
    fits = len(cache.shape) == 4 and cache.shape[2] % 2 == 0 and cache.shape[3] > 0
    expect(name, fits, "cache is (batch, capacity, 2 * kv_heads, head_dim)", cache=cache)
    _, _, both, head_dim = cache.shape
    total, _ = turned_of(name, given, tables, 0, head_dim)
    kept = {x.dtype} if x.dtype is not dtypes.f32 else PLAIN
    if cache.dtype not in kept or slots.dtype is not dtypes.i32:
        msg = (
            f"{name}: x is {x.dtype}, the cache {cache.dtype}, and slots are {slots.dtype}; "
            f"supported: a cache in f32, f16 or bf16 of x in f32 or its dtype, and i32"
        )
        raise DTypeError(msg)
    fits = cache.shape[0] == x.shape[0] and slots.shape == x.shape[:2]
    expect(name, fits, "slots are (batch, tokens), as x and cache have them", slots=slots, x=x)
    if heads < 0 or (heads + both) * head_dim != w.shape[0]:
        msg = (
            f"{name}: {heads} heads of queries, {both} of keys and values in the cache, each of "
            f"{head_dim}, of a product of {w.shape[0]}; supported: as many as the product has"
        )
        raise OpError(msg)
    return total, ((*x.shape[:2], heads, head_dim), x.dtype)


def keep(
    product: PairOp[Any],
    outs: tuple[Tensor, Tensor],
    cache: Tensor,
    given: tuple[Tensor, ...],
    slots: Tensor,
    tables: tuple[Tensor, ...],
    eps: float,
    interleaved: bool,
) -> None:
    total, out = outs
    x, _, _, w = given
    every = x.device.empty((*x.shape[:2], w.shape[0]), x.dtype)
    product.into((total, every), *given, eps)
    each = every.unflatten(2, cache.shape[3])
    queries, kept = out.shape[2], cache.shape[2]
    new = each.narrow(2, queries, kept)
    rope_kv_append(cache, new, slots, *tables, interleaved=interleaved)
    rope.into(out, each.narrow(2, 0, queries), *tables, interleaved=interleaved)


def turn(
    out: Tensor, tables: tuple[Tensor, ...], heads: int, head_dim: int, interleaved: bool
) -> None:
    turned = out.narrow(2, 0, heads * head_dim).unflatten(2, head_dim)
    assign(turned, rope(turned, *tables, interleaved=interleaved))


def _normed_terms(
    f: Callable[..., Any],
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    eps: float,
    scaled: bool,
) -> tuple[Array, Array]:
    """The norm, and the terms of its product: magnitudes of both factors."""
    total, *_ = f(x, residual, weight, w, eps=eps)
    normed = total / np.sqrt((total * total).mean(-1, keepdims=True) + eps) * weight
    sizes = scaled_together(normed) if scaled else np.abs(normed)
    return normed, sizes @ np.abs(w).T


def product_terms(
    f: Callable[..., Any],
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
    scaled: bool = False,
) -> tuple[None, Array]:
    """The product's; a gate, at most as steep as 1.1, passes on what both factors lost."""
    normed, terms = _normed_terms(f, x, residual, weight, w, eps, scaled)
    if not gated:
        return None, terms
    gate, up = np.split(normed @ w.T, 2, axis=-1)
    of_gate, of_up = np.split(terms, 2, axis=-1)
    return None, 1.1 * of_gate * np.abs(up) + np.abs(gate) * of_up


def turned_terms(
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
    scaled: bool = False,
) -> tuple[None, Array]:
    """The product's; of what is rotated, of both elements of a pair."""

    def without(*given: Array, eps: float) -> Any:
        tables = positions, cos, sin
        return f(*given, *tables, eps, heads=heads, head_dim=head_dim, interleaved=interleaved)

    _, terms = _normed_terms(without, x, residual, weight, w, eps, scaled)
    pairs = cos.shape[1]
    first = np.arange(pairs) * 2 if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    each = terms.reshape(*terms.shape[:-1], terms.shape[-1] // head_dim, head_dim).copy()
    a, b = each[..., :heads, first], each[..., :heads, second]
    c, s = np.abs(cos[positions])[:, :, None], np.abs(sin[positions])[:, :, None]
    each[..., :heads, first], each[..., :heads, second] = a * c + b * s, a * s + b * c
    return None, each.reshape(terms.shape)


def kept_terms(
    f: Callable[..., Any],
    cache: Array,
    x: Array,
    residual: Array,
    weight: Array,
    w: Array,
    slots: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
    scaled: bool = False,
) -> tuple[None, Array, Array]:
    """Those of what is rotated, of the queries, and of what is new in the cache."""

    def without(*given: Array, heads: int, head_dim: int, **rest: Any) -> Any:
        del head_dim
        *rows, positions, cos, sin, eps = given
        return f(cache, *rows, slots, positions, cos, sin, eps, heads=heads - kv_heads, **rest)

    kv_heads, head_dim = cache.shape[2] // 2, cache.shape[3]
    rows, tables = (x, residual, weight, w), (positions, cos, sin)
    how: Any = {"heads": heads + kv_heads, "head_dim": head_dim, "interleaved": interleaved}
    _, terms = turned_terms(without, *rows, *tables, eps, **how, scaled=scaled)
    each = terms.reshape(*terms.shape[:-1], heads + 2 * kv_heads, head_dim)
    kept = np.zeros(cache.shape)  # what was there before is what it was
    for b, t in np.ndindex(slots.shape):
        kept[b, slots[b, t]] = each[b, t, heads:]
    return None, each[:, :, :heads], kept


__all__ = [
    "PLAIN",
    "keep",
    "kept_of",
    "kept_terms",
    "of_product",
    "product_of",
    "product_terms",
    "turn",
    "turned_of",
    "turned_terms",
]
