"""Truths of products of matrices, and of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

Array = np.ndarray[Any, Any]


def _linear(x: Array, w: Array, bias: Array | None = None) -> Array:
    y = x @ w.T
    return np.asarray(y if bias is None else y + bias)


def _moe_linear(x: Array, w: Array, experts: Array) -> Array:
    if not experts.size:
        return np.zeros((*experts.shape, w.shape[1]))
    return np.asarray((w[experts] @ x[..., None])[..., 0])


def _attention(*args: Any, **kwargs: Any) -> Array:
    return _attention_lse(*args, **kwargs)[0]


def _attention_lse(
    q: Array,
    k: Array,
    v: Array,
    kv_len: Array | None = None,
    *,
    bias: Array | None = None,
    q_start: Array | None = None,
    block_table: Array | None = None,
    **rules: Any,
) -> tuple[Array, Array]:
    """Each sequence by itself."""
    y = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf)
    count = q.shape[0] if q_start is None else len(q_start) - 1
    for s in range(count):
        if block_table is None:
            keys, values = k[s], v[s]
        else:  # page after page
            keys, values = (np.concatenate([*pool[block_table[s]], pool[0][:0]]) for pool in (k, v))
        valid = len(keys) if kv_len is None else int(kv_len[s])
        row, tokens = s, slice(None)
        if q_start is not None:
            row, tokens = 0, slice(int(q_start[s]), int(q_start[s + 1]))
        full = (count, q.shape[2], q.shape[1], k.shape[1])
        own = None if bias is None else np.broadcast_to(bias, full)[s, :, :, :valid]
        given = q[row, tokens], keys[:valid], values[:valid]
        y[row, tokens], lse[row, :, tokens] = _attend(*given, own, **rules)
    return y, lse


def _attend(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    alibi: Array | None = None,
) -> tuple[Array, Array]:
    """One sequence: (tokens, heads, dim), (keys, kv_heads, dim): the rules in their order."""
    (t, heads, dim), n = q.shape, len(k)
    k, v = (np.repeat(a, heads // a.shape[1], 1) for a in (k, v))
    scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0)  # (heads, tokens, keys)
    scores = scores * (dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    position, key = n - t + np.arange(t)[:, None], np.arange(n)
    if alibi is not None:
        scores = scores - alibi[:, None, None] * np.abs(position - key)
    hidden = np.zeros((t, n), bool)
    if causal:
        hidden |= key > position
    left, right = window or (-1, -1)
    if left >= 0:
        hidden |= key < position - left
    if right >= 0:
        hidden |= key > position + right
    scores = np.where(hidden, -np.inf, scores)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    shift = np.where(top == -np.inf, 0, top)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True)
    v = v.transpose(1, 0, 2)
    if np.isfinite(v).all():
        y = weights @ v
    else:  # a hidden key adds nothing, not even 0 * NaN
        terms = weights[..., None] * v[:, None]
        y = np.where(hidden[None, :, :, None], 0, terms).sum(2)
    y = y / np.where(total == 0, 1, total)
    lse = np.log(total) + shift
    return y.transpose(1, 0, 2), lse[..., 0]


FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    "matmul": np.matmul,
    "linear": _linear,
    "moe_linear": _moe_linear,
    "attention": _attention,
    "attention_lse": _attention_lse,
}
