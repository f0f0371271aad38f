"""Attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.errors import DTypeError
from propolis.ops._infer import expect
from propolis.ops._infer import same_dtype
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"q": FLOATS})
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Meta:
    """
    ``softmax(q @ k.T * scale + mask) @ v`` for each head (Vaswani et al. 2017).

    Query head ``h`` reads key-value head ``h // (heads // kv_heads)`` (grouped-query
    attention).  Causal masks are aligned at the end, as in FlashAttention 2.1: the
    last query sees every valid key, the one before it one less.  A query that sees
    no key gives zeros.

    Args:
        q: (batch, tokens, heads, head_dim), a float dtype; computed in f32 or wider.
        k: (batch, capacity, kv_heads, head_dim), same dtype, any strides: a cache
            is passed whole.
        v: (batch, capacity, kv_heads, value_dim), same dtype.
        kv_len: (batch,), i32, how many leading keys are valid; None for all.  It is
            data, so that a captured decode step can be replayed at any length.
        scale: of the scores; ``head_dim ** -0.5`` when None.
        causal: whether a query may see only keys up to its own position.

    Returns:
        (batch, tokens, heads, value_dim), dtype of ``q``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: a ``kv_len`` is outside [0, capacity] (CPU, and GPU in debug mode).
    """
    same_dtype("attention", q=q, k=k, v=v)
    fits = (
        len(q.shape) == len(k.shape) == len(v.shape) == 4
        and q.shape[0] == k.shape[0]
        and k.shape[:3] == v.shape[:3]
        and q.shape[3] == k.shape[3]
        and k.shape[2] > 0
        and q.shape[2] % k.shape[2] == 0
    )
    expect(
        "attention",
        fits,
        "q is (batch, tokens, heads, dim), k and v (batch, capacity, kv_heads, dim), "
        "heads a multiple of kv_heads",
        q=q,
        k=k,
        v=v,
    )
    if kv_len is not None:
        expect("attention", kv_len.shape == q.shape[:1], "kv_len is (batch,)", q=q, kv_len=kv_len)
        if kv_len.dtype is not dtypes.i32:
            msg = f"attention: kv_len is {kv_len.dtype}; supported: i32"
            raise DTypeError(msg)
    return (*q.shape[:3], v.shape[3]), q.dtype
