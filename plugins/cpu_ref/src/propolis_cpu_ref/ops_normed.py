"""Products of the norm of a sum: what each half of a decoder's layer begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis import Tensor
from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis_cpu_ref.ops_matmul import linear
from propolis_cpu_ref.ops_norm import add_rms_norm
from propolis_cpu_ref.ops_quantized import prepare
from propolis_cpu_ref.ops_quantized import qmatmul
from propolis_cpu_ref.ops_rope import rope
from propolis_cpu_ref.ops_rope import rope_kv_append
from propolis_cpu_ref.ops_unary import silu_mul


if TYPE_CHECKING:
    from collections.abc import Callable


def _normed(
    product: Callable[..., None],
    total: Tensor,
    out: Tensor,
    given: tuple[Tensor, ...],
    eps: float,
    *,
    gated: bool,
) -> None:
    x, residual, weight, w = given
    kind = out.dtype.numpy
    normed = Tensor.from_numpy(np.empty(x.shape, kind), out.device)
    add_rms_norm(total, normed, x, residual, weight, eps)
    if not gated:
        product(out, normed, w)
        return
    shape, last = (*x.shape[:-1], w.shape[0]), len(x.shape) - 1
    both = Tensor.from_numpy(np.empty(shape, kind), out.device)
    product(both, normed, w)
    gate, up = (both.narrow(last, start, out.shape[-1]) for start in (0, out.shape[-1]))
    silu_mul(out, gate, up)


def _rotate(
    out: Tensor,
    product: Tensor,
    tables: tuple[Tensor, ...],
    heads: int,
    head_dim: int,
    *,
    interleaved: bool,
) -> None:
    out.array[...] = product.array
    turned, given = (
        each.narrow(2, 0, heads * head_dim).unflatten(2, head_dim) for each in (out, product)
    )
    rope(turned, given, *tables, interleaved=interleaved)


def _keep(
    product: Callable[..., None],
    outs: tuple[Tensor, Tensor],
    cache: Tensor,
    given: tuple[Tensor, ...],
    slots: Tensor,
    tables: tuple[Tensor, ...],
    eps: float,
    *,
    interleaved: bool,
) -> None:
    total, out = outs
    x, _, _, w = given
    flat = np.empty((*x.shape[:2], w.shape[0]), x.dtype.numpy)
    every = Tensor.from_numpy(flat, x.device)
    _normed(product, total, every, given, eps, gated=False)
    each, heads = every.unflatten(2, cache.shape[3]), out.shape[2]
    rope(out, each.narrow(2, 0, heads), *tables, interleaved=interleaved)
    new = each.narrow(2, heads, cache.shape[2])
    rope_kv_append(cache, new, slots, *tables, interleaved=interleaved)


def add_rms_norm_qmatmul(
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
    """One after the other, by the functions that do each."""
    _normed(qmatmul, total, out, (x, residual, weight, w), eps, gated=gated)


def add_rms_norm_qmatmul_rope(
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
    """The same, and its first heads rotated."""
    product = Tensor.from_numpy(np.empty(out.shape, out.dtype.numpy), out.device)
    add_rms_norm_qmatmul(total, product, x, residual, weight, w, eps)
    _rotate(out, product, (positions, cos, sin), heads, head_dim, interleaved=interleaved)


def add_rms_norm_qmatmul_rope_kv_append(
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
    """The same, and keys and values kept."""
    del heads  # as many as the output has
    rows, tables = (x, residual, weight, w), (positions, cos, sin)
    _keep(qmatmul, (total, out), cache, rows, slots, tables, eps, interleaved=interleaved)


def add_rms_norm_linear(
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
    """One after the other, by the functions that do each."""
    _normed(linear, total, out, (x, residual, weight, w), eps, gated=gated)


def add_rms_norm_linear_rope(
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
    """The same, and its first heads rotated."""
    product = Tensor.from_numpy(np.empty(out.shape, out.dtype.numpy), out.device)
    add_rms_norm_linear(total, product, x, residual, weight, w, eps)
    _rotate(out, product, (positions, cos, sin), heads, head_dim, interleaved=interleaved)


def add_rms_norm_linear_rope_kv_append(
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
    """The same, and keys and values kept."""
    del heads  # as many as the output has
    rows, tables = (x, residual, weight, w), (positions, cos, sin)
    _keep(linear, (total, out), cache, rows, slots, tables, eps, interleaved=interleaved)


OPS = [
    *(
        OpImpl(
            op=fn.__name__,
            fn=fn,
            dtypes={"x": {dtypes.f32}, "w": BLOCKS},
            prepare=prepare,
            notes="exact: weights as f32, activations unrounded",
        )
        for fn in (
            add_rms_norm_qmatmul,
            add_rms_norm_qmatmul_rope,
            add_rms_norm_qmatmul_rope_kv_append,
        )
    ),
    *(
        OpImpl(op=fn.__name__, fn=fn, dtypes={dtypes.f32, dtypes.f16, dtypes.bf16})
        for fn in (
            add_rms_norm_linear,
            add_rms_norm_linear_rope,
            add_rms_norm_linear_rope_kv_append,
        )
    ),
]
