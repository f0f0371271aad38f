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
from propolis_cpu_ref._threads import over_rows


if TYPE_CHECKING:
    from propolis import Tensor

# Queries at a time: a causal block skips the keys that none of its queries sees,
# and its scores stay in cache.
BLOCK = 64


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
    capacity = k.shape[1]
    lengths = [capacity] * q.shape[0] if kv_len is None else kv_len.array.tolist()
    if any(not 0 <= n <= capacity for n in lengths):
        msg = f"attention: kv_len {lengths} is outside [0, {capacity}], the capacity of k and v"
        raise OpError(msg)
    factor = q.shape[3] ** -0.5 if scale is None else scale
    y, keys, values = scratch(out), wide(k), wide(v)
    queries = wide(q) * y.dtype.type(factor)
    tokens = q.shape[1]

    def work(part: slice) -> None:
        for n, *one in zip(lengths, y, queries, keys, values, strict=True):
            _block(*one, part=part, valid=n, causal=causal)

    over_rows(out.device.threads, tokens, BLOCK, work)
    store(out, y)


@ieee
def _block(
    out: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    part: slice,
    valid: int,
    causal: bool,
) -> None:
    """
    One block of queries of one sequence.

    Args:
        out: (tokens, heads, value_dim), where rows ``part`` are written.
        q: (tokens, heads, head_dim), scaled already.
        k: (capacity, kv_heads, head_dim).
        v: (capacity, kv_heads, value_dim).
        part: the rows of this block.
        valid: how many leading keys count.
        causal: whether each query sees only keys up to its own position.
    """
    tokens, heads, _ = q.shape
    kv_heads, value_dim = v.shape[1:]
    rows = part.stop - part.start
    # A query at row i sees keys [0, valid - tokens + i].
    past = valid - tokens
    seen = max(0, min(valid, past + part.stop)) if causal else valid
    # Query heads that share a key-value head become rows of one matrix.
    grouped = q[part].reshape(rows, kv_heads, heads // kv_heads, -1).transpose(1, 2, 0, 3)
    scores = np.matmul(
        grouped.reshape(kv_heads, -1, q.shape[2]),
        k[:seen].transpose(1, 2, 0),
    ).reshape(kv_heads, -1, rows, seen)
    if causal and rows > 1:
        hidden = np.arange(seen) > past + np.arange(part.start, part.stop)[:, None]
        scores[..., hidden] = -np.inf
    if seen:
        top = scores.max(axis=-1, keepdims=True)
        scores -= np.where(np.isneginf(top), 0, top)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    weighted = np.matmul(
        scores.reshape(kv_heads, -1, seen),
        v[:seen].transpose(1, 0, 2),
    ).reshape(kv_heads, -1, rows, value_dim)
    # Dividing after the product touches head_dim numbers a row, not every score.
    weighted /= np.where(total == 0, 1, total)
    out[part] = weighted.transpose(2, 0, 1, 3).reshape(rows, heads, value_dim)


OPS = [OpImpl(op="attention", fn=attention, dtypes=FLOATS)]
