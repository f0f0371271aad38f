"""attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis.errors import OpError
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor

# Queries at a time: a causal block skips the keys that none of its queries sees,
# and the scores of one key-value head stay in cache.
BLOCK = 128


@ieee
def attention(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> None:
    """``softmax(q @ k.T * scale + mask) @ v``, block of queries by block."""
    batch, tokens, heads, dim = q.shape
    capacity, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    lengths = [capacity] * batch if kv_len is None else kv_len.array.tolist()
    if any(not 0 <= n <= capacity for n in lengths):
        msg = f"attention: kv_len {lengths} is outside [0, {capacity}], the capacity of k and v"
        raise OpError(msg)
    y, keys, values = scratch(out), wide(k), wide(v)
    factor = y.dtype.type(dim**-0.5 if scale is None else scale)
    # Query heads that share a key-value head become rows of one matrix.
    queries = wide(q).reshape(batch, tokens, kv_heads, group, dim)
    answers = y.reshape(batch, tokens, kv_heads, group, v.shape[3])
    memory = np.empty(group * min(tokens, BLOCK) * max(lengths, default=0), y.dtype)
    for b, valid in enumerate(lengths):
        for start in range(0, tokens, BLOCK):
            rows = slice(start, min(start + BLOCK, tokens))
            seen, hidden = _visible(rows, valid, tokens) if causal else (valid, None)
            count = rows.stop - rows.start
            scores = memory[: count * group * seen].reshape(count, group, seen)
            for h in range(kv_heads):
                answers[b, rows, h] = _head(
                    queries[b, rows, h] * factor,
                    keys[b, :seen, h],
                    values[b, :seen, h],
                    hidden,
                    scores,
                )
    store(out, y)


def _visible(rows: slice, valid: int, tokens: int) -> tuple[int, np.ndarray | None]:
    """
    How many keys the last of some causal rows sees, and what the others do not.

    The query at row i sees keys [0, valid - tokens + i].

    Returns:
        The number of keys, and (rows, some) of the last keys whether each is hidden
        from each row; None when no key is.
    """
    last = valid - tokens + np.arange(rows.start, rows.stop)
    seen = max(0, int(last[-1]) + 1)
    common = max(0, int(last[0]) + 1)
    if common == seen:
        return seen, None
    return seen, np.arange(common, seen) > last[:, None]


def _head(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    hidden: np.ndarray | None,
    scores: np.ndarray,
) -> np.ndarray:
    """
    One block of queries against one key-value head.

    Args:
        q: (rows, group, head_dim), contiguous, scaled already.
        k: (keys, head_dim).
        v: (keys, value_dim).
        hidden: (rows, some): of the last keys, those that a row does not see.
        scores: (rows, group, keys): memory to work in.

    Returns:
        (rows, group, value_dim).
    """
    # Counted, because numpy cannot infer a size beside a 0.
    rows = q.shape[0] * q.shape[1]
    flat = scores.reshape(rows, len(k))
    np.matmul(q.reshape(rows, q.shape[2]), k.T, out=flat)
    if hidden is not None:
        some = hidden.shape[1]
        np.copyto(scores[:, :, -some:], -np.inf, where=hidden[:, None, :])
    if len(k):
        top = flat.max(axis=-1, keepdims=True)
        flat -= np.where(np.isneginf(top), 0, top)
    np.exp(flat, out=flat)
    total = flat.sum(axis=-1, keepdims=True)
    weighted = np.matmul(flat, v)
    # Dividing after the product touches head_dim numbers a row, not every score.
    weighted /= np.where(total == 0, 1, total)
    return np.asarray(weighted.reshape(*q.shape[:2], v.shape[1]))


OPS = [OpImpl(op="attention", fn=attention, dtypes=FLOATS)]
