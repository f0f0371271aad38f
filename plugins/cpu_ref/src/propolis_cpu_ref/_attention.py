"""What attention computes of one sequence after another: scores, softmax and weighted values."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import NamedTuple

import numpy as np

from propolis_cpu_ref._threads import share


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator

# Queries at a time where a mask hides keys: a block skips those that none of its queries sees.
BLOCK = 128

# Scores at a time, about, where none is hidden: they stay in cache, and each product is
# large enough for BLAS.
SCORES = 1 << 20

# Products of one call that are worth handing work over to threads.
SHARED = 1 << 24


class Rules(NamedTuple):
    """What the attributes of a call say of every score."""

    scale: np.floating
    causal: bool
    left: int
    right: int
    softcap: float
    slopes: np.ndarray | None

    @property
    def masks(self) -> bool:
        return self.causal or self.left >= 0 or self.right >= 0

    @property
    def shapes(self) -> bool:
        return self.softcap != 0 or self.slopes is not None


class Rows:
    """Keys or values of a sequence in one piece of memory, or in a few."""

    def __init__(self, parts: list[np.ndarray]) -> None:
        self.parts = parts
        self.shape = (sum(map(len, parts)), *parts[0].shape[1:])

    def of(self, head: int, keys: slice) -> list[np.ndarray]:
        """Some of a head's rows: (count, dim) of each piece."""
        found, at = [], 0
        for part in self.parts:
            first, last = max(keys.start - at, 0), min(keys.stop - at, len(part))
            if first < last or len(self.parts) == 1:
                found.append(part[first:last, head])
            at += len(part)
        return found or [self.parts[0][:0, head]]


class Sequence(NamedTuple):
    """One sequence: its queries and where they go, its valid keys and values."""

    q: np.ndarray  # (tokens, heads, head_dim)
    k: Rows  # (valid, kv_heads, head_dim)
    v: Rows  # (valid, kv_heads, value_dim)
    out: np.ndarray  # (tokens, heads, value_dim)
    lse: np.ndarray | None  # (heads, tokens)
    bias: np.ndarray | None  # (heads, tokens, valid)


class Block(NamedTuple):
    """Some queries of one sequence, those that share one key-value head."""

    sequence: Sequence
    rows: slice
    head: int


def attend(threads: int, sequences: Iterable[Sequence], rules: Rules) -> None:
    blocks: list[Block] = []
    products = 0
    for sequence in sequences:
        tokens, heads, dim = sequence.q.shape
        valid, kv_heads, value_dim = sequence.v.shape
        products += tokens * heads * valid * (dim + value_dim)
        group, step = heads // kv_heads, BLOCK
        if not rules.masks:
            some = SCORES // max(group * valid, 1)
            step = max(BLOCK, min(some, -(-tokens * kv_heads // threads)))
        for head in range(kv_heads):
            for start in range(0, tokens, step):
                rows = slice(start, min(start + step, tokens))
                blocks.append(Block(sequence, rows, head))

    def work(some: Iterator[Block]) -> None:
        memory = np.empty(0, np.float32)
        for block in some:
            memory = _attend_block(block, rules, memory)

    share(threads if products >= SHARED else 1, blocks, work)


def _attend_block(block: Block, rules: Rules, memory: np.ndarray) -> np.ndarray:
    """
    Compute the answers of one block, with the scores in ``memory``.

    Returns:
        The memory, or a larger one where that was too small.
    """
    sequence, rows, head = block
    tokens, heads, dim = sequence.q.shape
    valid, kv_heads, _ = sequence.v.shape
    group, count = heads // kv_heads, rows.stop - rows.start
    keys, hidden = slice(0, valid), None
    if rules.masks:
        keys, hidden = _visible(rows, valid, tokens, rules)
    seen = keys.stop - keys.start
    size, dtype = count * group * seen, sequence.out.dtype
    if memory.size < size or memory.dtype != dtype:
        memory = np.empty(size, dtype)
    scores = memory[:size].reshape(count, group, seen)
    # Query heads that share a key-value head become rows of one matrix.
    which = slice(head * group, (head + 1) * group)
    q = (sequence.q[rows, which] * rules.scale).reshape(count * group, dim)
    at, flat = 0, scores.reshape(count * group, seen)
    for part in sequence.k.of(head, keys):
        np.matmul(q, part.T, out=flat[:, at : at + len(part)])
        at += len(part)
    if rules.shapes or sequence.bias is not None:
        _shape_scores(scores, sequence, rules, rows, which, keys)
    if hidden is not None:
        some = hidden.shape[1]
        np.copyto(scores[:, :, seen - some :], -np.inf, where=hidden[:, None, :])
    lse = None if sequence.lse is None else sequence.lse[which, rows]
    answer = _weigh(scores, sequence.v.of(head, keys), hidden, lse)
    sequence.out[rows, which] = answer
    return memory


def _visible(
    rows: slice,
    valid: int,
    tokens: int,
    rules: Rules,
) -> tuple[slice, np.ndarray | None]:
    """
    Which keys any of some rows may see, and what each row does not.

    The query at row i stands at position ``valid - tokens + i``.

    Returns:
        From which key to which, and (rows, some) of the last of them whether each is hidden
        from each row; None when no key is.
    """
    reach = 0 if rules.causal else rules.right
    before = valid - tokens + reach if reach >= 0 else valid  # of row 0: the last key it sees
    first, last = (min(before + row, valid - 1) for row in (rows.start, rows.stop - 1))
    seen, oldest = max(0, last + 1), 0
    if rules.left >= 0:
        oldest = min(max(0, valid - tokens - rules.left + rows.start), seen)
    # Keys that every row sees need no mask, unless a window forgets the oldest.
    common = max(0, first + 1) if rules.left < 0 else oldest
    if common == seen:
        return slice(oldest, seen), None
    keys, row = np.arange(common, seen), np.arange(rows.start, rows.stop)[:, None]
    hidden = keys > before + row
    if rules.left >= 0:
        hidden |= keys < valid - tokens - rules.left + row
    return slice(oldest, seen), hidden


def _shape_scores(
    scores: np.ndarray,
    sequence: Sequence,
    rules: Rules,
    rows: slice,
    heads: slice,
    keys: slice,
) -> None:
    """Soft cap, then bias, then ALiBi; in place."""
    if rules.softcap:
        cap = scores.dtype.type(rules.softcap)
        np.tanh(np.divide(scores, cap, out=scores), out=scores)
        scores *= cap
    if sequence.bias is not None:
        scores += sequence.bias[heads, rows, keys].transpose(1, 0, 2)
    if rules.slopes is not None:
        position = sequence.k.shape[0] - len(sequence.q) + np.arange(rows.start, rows.stop)
        distance = np.abs(position[:, None] - np.arange(keys.start, keys.stop)).astype(scores.dtype)
        scores -= rules.slopes[heads][:, None] * distance[:, None, :]


def _weigh(
    scores: np.ndarray,
    values: list[np.ndarray],
    hidden: np.ndarray | None,
    lse: np.ndarray | None,
) -> np.ndarray:
    """
    The softmax of (rows, group, keys) scores times values.

    The logarithm of each row's sum of exponentials goes to ``lse``, (group, rows).

    Returns:
        (rows, group, value_dim), zeros where no key is seen.
    """
    rows, group, keys = scores.shape
    # Counted, because numpy cannot infer a size beside a 0.
    flat = scores.reshape(rows * group, keys)
    top = np.zeros((rows * group, 1), flat.dtype)
    if keys:
        flat.max(axis=-1, keepdims=True, out=top)
        top[np.isneginf(top)] = 0
        flat -= top
    np.exp(flat, out=flat)
    total = flat.sum(axis=-1, keepdims=True)
    weighted, at = np.matmul(flat[:, : len(values[0])], values[0]), len(values[0])
    for part in values[1:]:
        weighted += np.matmul(flat[:, at : at + len(part)], part)
        at += len(part)
    if hidden is not None and np.isnan(weighted).any():
        weighted = _weigh_seen(flat, np.concatenate(values), np.repeat(hidden, group, axis=0))
    # Dividing after the product touches value_dim numbers a row, not every score.
    weighted /= np.where(total == 0, 1, total)
    if lse is not None:
        lse[...] = (np.log(total) + top).reshape(rows, group).T
    return np.asarray(weighted.reshape(rows, group, weighted.shape[1]))


def _weigh_seen(weights: np.ndarray, v: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """
    (rows, keys) weights times values, to which a hidden key adds nothing: not even 0 * NaN.

    ``hidden`` is (rows, some), of the last keys.
    """
    finite = np.isfinite(v)
    weighted = np.matmul(weights, np.where(finite, v, 0))
    always = len(v) - hidden.shape[1]
    for key in np.flatnonzero(~finite.all(axis=1)):
        sees = slice(None) if key < always else ~hidden[:, key - always]
        weighted[sees] += weights[sees, key, None] * np.where(finite[key], 0, v[key])
    return np.asarray(weighted)


__all__ = ["Rows", "Rules", "Sequence", "attend"]
