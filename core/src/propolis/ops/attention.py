"""
Attention: one op for whole batches, ragged batches and paged caches.

What changes between the tokens of a decode (lengths, block tables) is data, so that a
captured step can be replayed at any length.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.ops.cast import cast
from propolis.ops.quantized import dequantize
from propolis.opspec.docstrings import parameter_docs
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.spec import pair_op
from propolis.opspec.tolerance import RELATIVE


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dtypes import DType
    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor

Window = tuple[int, int]
"""Keys a query sees to its left and right; -1 for all."""


def _attention_terms(
    f: Callable[..., Any], q: Array, k: Array, v: Array, *args: Any, **kwargs: Any
) -> Array:
    """
    Weights times values, and what rounding the scores does to the weights.

    A score that is off by ``d`` multiplies its weight by ``exp(d)``.  Scores are short
    sums: they lose about two units, where the 64 that long ones are allowed would hide half
    precision.
    """
    reach = _score_reach(q, k, *args, **kwargs)
    return np.asarray(f(q, k, np.abs(v), *args, **kwargs) * (1 + reach / 32))


def _score_reach(
    q: Array,
    k: Array,
    kv_len: Array | None = None,
    *,
    scale: float | None = None,
    bias: Array | None = None,
    alibi: Array | None = None,
    q_start: Array | None = None,
    block_table: Array | None = None,
    **rules: Any,
) -> Array:
    """
    For each query and head a bound on its scores' sums of magnitudes.

    Returns:
        (batch, tokens, heads, 1); of ragged and paged calls the keys of all sequences bound
        each.
    """
    size, heads = np.abs(q), q.shape[2]
    keys = np.abs(_finite(k))  # what lies behind kv_len may be anything
    if q_start is not None or block_table is not None:
        largest = keys.max((0, 1), initial=0.0)[None]
    else:
        valid = np.full(len(k), k.shape[1]) if kv_len is None else kv_len
        seen = np.arange(k.shape[1]) < valid[:, None]
        largest = np.where(seen[:, :, None, None], keys, 0.0).max(1, initial=0.0)
    largest = np.repeat(largest, heads // k.shape[2], 1)
    scores = (_finite(size) * largest[:, None]).sum(-1, keepdims=True)
    scores = scores * abs(q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + np.abs(_finite(bias)).max(initial=0)
    if alibi is not None:
        scores = scores + np.abs(alibi)[:, None] * (q.shape[1] + k.shape[0] * k.shape[1])
    return np.asarray(scores)


def _finite(a: Array) -> Array:
    return np.nan_to_num(a, nan=0.0, posinf=0.0, neginf=0.0)


@op({"q": FLOATS}, tolerance=RELATIVE, magnitude=_attention_terms)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> Meta:
    """
    ``softmax(cap(q @ k.T * scale) + bias + mask) @ v`` for each head (Vaswani et al. 2017).

    Query head ``h`` reads key-value head ``h // (heads // kv_heads)`` (grouped-query
    attention).  Queries and keys are aligned at the end, as in FlashAttention 2.1: of
    ``t`` queries over ``n`` valid keys, query ``i`` stands at position ``p = n - t + i``.
    It sees keys up to ``p`` when causal, and keys ``p - left`` to ``p + right`` of a
    window.  A query that sees no key gives zeros.

    What lies beyond ``kv_len`` is never part of a result, whatever its bytes: a cache need
    not be cleared.  A key that ``causal`` or ``window`` hides from a query has weight 0 for
    it.  Where its value is not finite, the CPU reference still leaves it out; others may
    give NaN (0 * NaN, as torch's do: in whole, or for the keys of a tile), because a test of
    every product would cost what matrix units gain.  A ``bias`` of -inf is a score, not a
    mask: its 0 * NaN is NaN everywhere.

    Ragged batches: with ``q_start``, ``q`` is (1, total, heads, head_dim) and sequence
    ``s`` is its rows ``q_start[s]`` to ``q_start[s + 1]``; ``k`` and ``v`` hold a sequence
    a row of their batch dimension, ``kv_len`` keys each.

    Paged caches: with ``block_table``, ``k`` and ``v`` are pages (pages, page_size,
    kv_heads, dim), and key ``j`` of sequence ``s`` is row ``j % page_size`` of page
    ``block_table[s, j // page_size]``.

    Args:
        q: (batch, tokens, heads, head_dim), a float dtype; computed in f32 or wider.
        k: (batch, capacity, kv_heads, head_dim), same dtype, any strides: a cache
            is passed whole.
        v: (batch, capacity, kv_heads, value_dim), same dtype.
        kv_len: (batch,), i32, how many leading keys are valid; None for all.
        scale: of the scores; ``head_dim ** -0.5`` when None.
        causal: whether a query may see only keys up to its own position.
        window: keys seen to the left and right of a query's own; -1 for all.
        softcap: where not 0, scores become ``softcap * tanh(score / softcap)`` (Gemma 2).
        bias: added to the scores, broadcast to (batch, heads, tokens, capacity), same
            dtype as ``q`` or f32 (f8 has 8 numbers between 1 and 2); not with q_start or
            block_table.
        alibi: (heads,), f32: adds ``-slope * |p - key|`` (Press et al. 2021).
        q_start: (batch + 1,), i32, ascending from 0 to total.
        block_table: (batch, blocks), i32; needs kv_len.

    Returns:
        Shape of ``q`` with value_dim last, dtype of ``q``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: arguments exclude each other; or, on the CPU, a length, start or page is out of
            range: a GPU does not look.
    """
    return _infer("attention", q, k, v, kv_len, window, softcap, bias, alibi, q_start, block_table)


_SHARED = parameter_docs(attention.__doc__ or "")


def _attention_lse_terms(
    f: Callable[..., Any], q: Array, k: Array, v: Array, *args: Any, **kwargs: Any
) -> tuple[Array, Array]:
    def weighted(*args: Any, **kwargs: Any) -> Array:
        return np.asarray(f(*args, **kwargs)[0])

    lse = np.abs(f(q, k, v, *args, **kwargs)[1])
    reach = _score_reach(q, k, *args, **kwargs)[..., 0].transpose(0, 2, 1)
    return _attention_terms(weighted, q, k, v, *args, **kwargs), 1 + lse + reach / 32


@pair_op(
    {"q": FLOATS},
    tolerance=RELATIVE,
    magnitude=_attention_lse_terms,
    shared=_SHARED,
)
def attention_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> tuple[Meta, Meta]:
    """
    ``attention`` with the logarithm of each row's sum of exponentials as well.

    Two results over disjoint keys can be merged with it, as split-KV decoding does.

    Returns:
        The result of ``attention``, and (batch, heads, tokens) in f32 (f64 for f64):
        ``log(sum(exp(scores)))``, -inf for a query that sees no key.

    Raises:
        DTypeError: the dtypes are not as for ``attention``.
        ShapeError: the shapes do not fit together.
        OpError: as for ``attention``.
    """
    out = _infer(
        "attention_lse", q, k, v, kv_len, window, softcap, bias, alibi, q_start, block_table
    )
    return out, _lse(q)


# What keys and values may be kept in, beside the dtype of queries.
_KEPT = frozenset({dtypes.q8_0, dtypes.f16, dtypes.bf16})


def _read_as(x: Tensor, dtype: DType) -> Tensor:
    """What is kept, in the dtype of queries."""
    if x.dtype is dtype:
        return x
    return dequantize(x, dtype) if x.dtype.is_block else cast(x, dtype)


def _parts(which: Any) -> Any:
    """What either op is decomposed into."""

    def parts(q: DType, k: DType) -> dict[Any, tuple[DType, ...]]:
        if k is q:
            return {which: (q,)}
        return {dequantize if k.is_block else cast: (k,), which: (q,)}

    return parts


@op({"q": FLOATS, "k": _KEPT}, tolerance=RELATIVE, magnitude=_attention_terms, shared=_SHARED)
def qattention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> Meta:
    """
    ``attention`` of keys and values in a GGUF block format or in 16 bits, as a cache keeps them.

    They are the numbers that ``dequantize`` or ``cast`` gives, and everything else is as in
    ``attention``.  An implementation that rounds them, or queries, any further is not exact and
    says so.

    Args:
        k: (batch, capacity, kv_heads, head_dim), f16 or bf16 of any strides; or q8_0 along
            head_dim, so that it is a multiple of 32, of any other strides.
        v: (batch, capacity, kv_heads, value_dim), likewise.

    Returns:
        Shape of ``q`` with value_dim last, dtype of ``q``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: as for ``attention``.
    """
    return _infer("qattention", q, k, v, kv_len, window, softcap, bias, alibi, q_start, block_table)


# In dtypes narrower than f32 keys and values are rounded to that of the queries, as what qmatmul
# is decomposed into rounds weights.
@qattention.decomposes(_parts(attention))
def _qattention(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> None:
    attention.into(
        out,
        q,
        _read_as(k, q.dtype),
        _read_as(v, q.dtype),
        kv_len,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        bias=bias,
        alibi=alibi,
        q_start=q_start,
        block_table=block_table,
    )


@pair_op(
    {"q": FLOATS, "k": _KEPT},
    tolerance=RELATIVE,
    magnitude=_attention_lse_terms,
    shared=parameter_docs(qattention.__doc__ or ""),
)
def qattention_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> tuple[Meta, Meta]:
    """
    ``attention_lse`` of keys and values as ``qattention`` takes them.

    Returns:
        The results of ``attention_lse``.

    Raises:
        DTypeError: the dtypes are not as for ``qattention``.
        ShapeError: the shapes do not fit together.
        OpError: as for ``attention``.
    """
    out = _infer(
        "qattention_lse", q, k, v, kv_len, window, softcap, bias, alibi, q_start, block_table
    )
    return out, _lse(q)


@qattention_lse.decomposes(_parts(attention_lse))
def _qattention_lse(
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> None:
    attention_lse.into(
        (out, lse),
        q,
        _read_as(k, q.dtype),
        _read_as(v, q.dtype),
        kv_len,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        bias=bias,
        alibi=alibi,
        q_start=q_start,
        block_table=block_table,
    )


def _lse(q: Tensor) -> Meta:
    wide = dtypes.f64 if q.dtype is dtypes.f64 else dtypes.f32
    return (q.shape[0], q.shape[2], q.shape[1]), wide


def _infer(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_len: Tensor | None,
    window: Window | None,
    softcap: Any,
    bias: Tensor | None,
    alibi: Tensor | None,
    q_start: Tensor | None,
    block_table: Tensor | None,
) -> Meta:
    if name.startswith("q"):  # whose dtypes were looked at
        same_dtype(name, k=k, v=v)
    else:
        same_dtype(name, q=q, k=k, v=v)
    fits = (
        len(q.shape) == len(k.shape) == len(v.shape) == 4
        and k.shape[:3] == v.shape[:3]
        and q.shape[3] == k.shape[3] > 0
        and k.shape[2] > 0
        and q.shape[2] % k.shape[2] == 0
        and (q_start is None or q.shape[0] == 1)
    )
    rule = (
        "q is (batch, tokens, heads, dim), k and v (batch, capacity, kv_heads, dim), heads a "
        "multiple of kv_heads, and q (1, total, heads, dim) with q_start"
    )
    expect(name, fits, rule, q=q, k=k, v=v)
    batch = q.shape[0] if q_start is None else _count(name, q_start)
    if block_table is None:
        expect(name, k.shape[0] == batch, f"k and v hold {batch} sequences", q=q, k=k)
    else:
        expect(name, k.shape[1] > 0, "pages hold at least one key", k=k)
    _check_lengths(name, batch, kv_len, block_table)
    if window is not None and not _is_window(window):
        msg = f"{name}: window {window} must be two ints of at least -1 (-1 for all keys)"
        raise OpError(msg)
    if not _is_cap(softcap):
        msg = f"{name}: softcap {softcap!r} must be a number, not negative (0 for none)"
        raise OpError(msg)
    if bias is not None:
        if q_start is not None or block_table is not None:
            msg = f"{name}: bias goes with neither q_start nor block_table"
            raise OpError(msg)
        if bias.dtype is not dtypes.f32:
            same_dtype(name, q=q, bias=bias)
        wanted = (batch, q.shape[2], q.shape[1], k.shape[1])
        own = bias.shape[::-1]
        spread = len(own) <= 4 and all(n in (1, m) for n, m in zip(own, wanted[::-1], strict=False))
        rule = f"bias broadcasts to (batch, heads, tokens, capacity), which is {wanted}"
        expect(name, spread, rule, q=q, k=k, bias=bias)
    if alibi is not None:
        _check_kind(name, "alibi", alibi, dtypes.f32)
        expect(name, alibi.shape == q.shape[2:3], "alibi is (heads,)", q=q, alibi=alibi)
    return (*q.shape[:3], v.shape[3]), q.dtype


def _is_cap(softcap: Any) -> bool:
    known = softcap.__class__ is float or isinstance(softcap, Real)
    return known and float(softcap) >= 0


def _is_window(window: Any) -> bool:
    sizes = tuple(window)
    return len(sizes) == 2 and all(isinstance(n, int) and n >= -1 for n in sizes)


def _count(name: str, q_start: Tensor) -> int:
    """How many sequences a ragged batch has."""
    _check_kind(name, "q_start", q_start, dtypes.i32)
    fits = len(q_start.shape) == 1 and q_start.shape[0] > 0
    expect(name, fits, "q_start is (batch + 1,)", q_start=q_start)
    return q_start.shape[0] - 1


def _check_lengths(
    name: str,
    batch: int,
    kv_len: Tensor | None,
    block_table: Tensor | None,
) -> None:
    if kv_len is not None:
        _check_kind(name, "kv_len", kv_len, dtypes.i32)
        expect(name, kv_len.shape == (batch,), f"kv_len is ({batch},)", kv_len=kv_len)
    if block_table is not None:
        _check_kind(name, "block_table", block_table, dtypes.i32)
        fits = len(block_table.shape) == 2 and block_table.shape[0] == batch
        expect(name, fits, f"block_table is ({batch}, blocks)", block_table=block_table)
        if kv_len is None:
            msg = f"{name}: block_table needs kv_len, the number of keys of each sequence"
            raise OpError(msg)


def _check_kind(name: str, what: str, tensor: Tensor, wanted: DType) -> None:
    if tensor.dtype is not wanted:
        msg = f"{name}: {what} is {tensor.dtype}; supported: {wanted}"
        raise DTypeError(msg)
