"""attention, qattention, and each with its sums of exponentials."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import NamedTuple

import numpy as np

from propolis import OpImpl
from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.errors import OpError
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._indices import check_range
from propolis_cpu_ref._threads import share
from propolis_cpu_ref.ops_quantized import numbers_of


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator

    from propolis import Tensor
    from propolis.ops.attention import Window

# Queries at a time where a mask hides keys: a block skips those that none of its queries sees.
BLOCK = 128

# Scores at a time, about, where none is hidden: they stay in cache, and each product is
# large enough for BLAS.
SCORES = 1 << 20

# Pieces of memory that keys are multiplied in where they are: of more they are copied into one.
PIECES = 4

# Products of one call that are worth handing work over to threads.
SHARED = 1 << 24


class _Rules(NamedTuple):
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


class _Rows:
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


class _Sequence(NamedTuple):
    """One sequence: its queries and where they go, its valid keys and values."""

    q: np.ndarray  # (tokens, heads, head_dim)
    k: _Rows  # (valid, kv_heads, head_dim)
    v: _Rows  # (valid, kv_heads, value_dim)
    out: np.ndarray  # (tokens, heads, value_dim)
    lse: np.ndarray | None  # (heads, tokens)
    bias: np.ndarray | None  # (heads, tokens, valid)


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
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> None:
    """``softmax(q @ k.T * scale + mask) @ v``, block of queries by block."""
    y = scratch(out)
    rules = _rules(q, y, scale, window, softcap, alibi, causal=causal)
    parts = (q, k, v, kv_len, bias, q_start, block_table, rules.left)
    _attend(out.device.threads, _sequences("attention", y, None, *parts), rules)
    store(out, y)


@ieee
def attention_lse(
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
    """The same, with the logarithm of each row's sum of exponentials."""
    y = scratch(out)
    rules = _rules(q, y, scale, window, softcap, alibi, causal=causal)
    parts = (q, k, v, kv_len, bias, q_start, block_table, rules.left)
    _attend(out.device.threads, _sequences("attention_lse", y, lse.array, *parts), rules)
    store(out, y)


@ieee
def qattention(
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
    """The same, of keys and values in blocks."""
    y = scratch(out)
    rules = _rules(q, y, scale, window, softcap, alibi, causal=causal)
    parts = (q, k, v, kv_len, bias, q_start, block_table, rules.left)
    _attend(out.device.threads, _sequences("qattention", y, None, *parts), rules)
    store(out, y)


@ieee
def qattention_lse(
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
    """Both."""
    y = scratch(out)
    rules = _rules(q, y, scale, window, softcap, alibi, causal=causal)
    parts = (q, k, v, kv_len, bias, q_start, block_table, rules.left)
    _attend(out.device.threads, _sequences("qattention_lse", y, lse.array, *parts), rules)
    store(out, y)


def _rules(
    q: Tensor,
    y: np.ndarray,
    scale: float | None,
    window: Window | None,
    softcap: float,
    alibi: Tensor | None,
    *,
    causal: bool,
) -> _Rules:
    left, right = (-1, -1) if window is None else window
    return _Rules(
        y.dtype.type(q.shape[3] ** -0.5 if scale is None else scale),
        causal,
        left,
        right,
        softcap,
        None if alibi is None else alibi.array,
    )


def _sequences(
    op: str,
    y: np.ndarray,
    lse: np.ndarray | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_len: Tensor | None,
    bias: Tensor | None,
    q_start: Tensor | None,
    block_table: Tensor | None,
    left: int,
) -> Iterator[_Sequence]:
    """Take the batch apart, once every length and page is known to be good."""
    queries = wide(q)
    batch = q.shape[0] if q_start is None else q_start.shape[0] - 1
    capacity = k.shape[1] if block_table is None else k.shape[1] * block_table.shape[1]
    lengths = [capacity] * batch if kv_len is None else kv_len.array.tolist()
    if any(not 0 <= n <= capacity for n in lengths):
        msg = f"{op}: kv_len {lengths} is outside [0, {capacity}], the capacity of k and v"
        raise OpError(msg)
    starts = _starts(op, q_start, q.shape[1])
    pages = None if block_table is None else _pages(op, block_table.array, lengths, k.shape[:2])
    biases = None
    if bias is not None:
        shape = (batch, q.shape[2], q.shape[1], k.shape[1])
        biases = np.broadcast_to(wide(bias), shape)
    keys, values = _Kept(k, queries.dtype), _Kept(v, queries.dtype)
    for s, valid in enumerate(lengths):
        row, rows = (s, slice(None)) if starts is None else (0, slice(*starts[s : s + 2]))
        own, some = s if pages is None else pages[s], queries[row, rows]
        # Queries are aligned at the end: without the keys that none sees all is as it was.
        first = 0 if left < 0 else max(0, valid - len(some) - left)
        yield _Sequence(
            some,
            keys.rows(own, first, valid),
            values.rows(own, first, valid),
            y[row, rows],
            None if lse is None else lse[row, :, rows],
            None if biases is None else biases[s, :, :, first:valid],
        )


class _Kept:
    """Keys or values of all sequences: only what a sequence reads becomes wide numbers."""

    def __init__(self, x: Tensor, dtype: np.dtype) -> None:
        self._blocks = x.dtype if x.dtype.is_block else None
        self._array = x.array
        self._threads, self._dtype = x.device.threads, dtype

    def rows(self, own: int | np.ndarray, first: int, last: int) -> _Rows:
        """Some of a sequence, or of its pages: (last - first, kv_heads, dim)."""
        if isinstance(own, int):
            return _Rows([self._numbers(self._array[own, first:last])])
        size = self._array.shape[1]
        begin = first // size
        parts, at = [], begin * size
        for part in self._paged(own[begin:]):
            parts.append(self._numbers(part[max(first - at, 0) : max(last - at, 0)]))
            at += len(part)
        return _Rows(parts)

    def _numbers(self, found: np.ndarray) -> np.ndarray:
        if self._blocks is None:
            return found.astype(self._dtype, copy=False)
        # Head after head, as products read them.
        heads = numbers_of(found.transpose(1, 0, 2), self._blocks, self._threads)
        return heads.astype(self._dtype, copy=False).transpose(1, 0, 2)

    def _paged(self, pages: np.ndarray) -> list[np.ndarray]:
        """The rows of some pages in order: views where they are neighbours, else copied."""
        runs = _runs(pages)
        if len(runs) <= PIECES:
            found = [self._array[run] for run in runs]
            # Counted, because numpy cannot infer a size beside a 0.
            return [x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in found]
        # Head after head, as products read them, and copied once.
        copied = np.ascontiguousarray(self._array.transpose(2, 0, 1, 3)[:, pages])
        heads, count, size, dim = copied.shape
        return [copied.reshape(heads, count * size, dim).transpose(1, 0, 2)]


def _starts(op: str, q_start: Tensor | None, total: int) -> list[int] | None:
    if q_start is None:
        return None
    starts: list[int] = q_start.array.tolist()
    if starts[0] != 0 or starts[-1] != total or sorted(starts) != starts:
        msg = f"{op}: q_start {starts} must ascend from 0 to {total}, the rows of q"
        raise OpError(msg)
    return starts


def _pages(
    op: str,
    table: np.ndarray,
    lengths: list[int],
    pool: tuple[int, ...],
) -> list[np.ndarray]:
    """The pages that each sequence reads; entries beyond its length may be anything."""
    used = [row[: -(-n // pool[1])] for row, n in zip(table, lengths, strict=True)]
    for row in used:
        check_range(op, "page", row, pool[0], "the cache")
    return used


def _runs(pages: np.ndarray) -> list[slice]:
    """Neighbouring pages as slices: what these take of a pool need not be copied."""
    ends = np.flatnonzero(np.diff(pages) != 1) + 1
    runs = np.split(pages, ends[: PIECES + 1])
    return [slice(int(run[0]), int(run[0]) + len(run)) if len(run) else slice(0, 0) for run in runs]


class _Block(NamedTuple):
    """Some queries of one sequence, those that share one key-value head."""

    sequence: _Sequence
    rows: slice
    head: int


def _attend(threads: int, sequences: Iterable[_Sequence], rules: _Rules) -> None:
    blocks: list[_Block] = []
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
                blocks.append(_Block(sequence, rows, head))

    def work(some: Iterator[_Block]) -> None:
        memory = np.empty(0, np.float32)
        for block in some:
            memory = _attend_block(block, rules, memory)

    share(threads if products >= SHARED else 1, blocks, work)


def _attend_block(block: _Block, rules: _Rules, memory: np.ndarray) -> np.ndarray:
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
    rules: _Rules,
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
    sequence: _Sequence,
    rules: _Rules,
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


_KEPT = {"q": FLOATS, "k": {dtypes.q8_0}}
OPS = [
    OpImpl(op="attention", fn=attention, dtypes=FLOATS),
    OpImpl(op="attention_lse", fn=attention_lse, dtypes=FLOATS),
    OpImpl(op="qattention", fn=qattention, dtypes=_KEPT),
    OpImpl(op="qattention_lse", fn=qattention_lse, dtypes=_KEPT),
]
