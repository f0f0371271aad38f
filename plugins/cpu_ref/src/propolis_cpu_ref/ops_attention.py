"""attention, qattention, and each with its sums of exponentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.errors import OpError
from propolis_cpu_ref._attention import Rows
from propolis_cpu_ref._attention import Rules
from propolis_cpu_ref._attention import Sequence
from propolis_cpu_ref._attention import attend
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import wide
from propolis_cpu_ref._indices import check_range
from propolis_cpu_ref.ops_quantized import numbers_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Tensor
    from propolis.ops.attention import Window

# Pieces of memory that keys are multiplied in where they are: of more they are copied into one.
PIECES = 4


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
    attend(out.device.threads, _sequences("attention", y, None, *parts), rules)
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
    attend(out.device.threads, _sequences("attention_lse", y, lse.array, *parts), rules)
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
    """The same, of keys and values in blocks or in 16 bits."""
    y = scratch(out)
    rules = _rules(q, y, scale, window, softcap, alibi, causal=causal)
    parts = (q, k, v, kv_len, bias, q_start, block_table, rules.left)
    attend(out.device.threads, _sequences("qattention", y, None, *parts), rules)
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
    attend(out.device.threads, _sequences("qattention_lse", y, lse.array, *parts), rules)
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
) -> Rules:
    left, right = (-1, -1) if window is None else window
    return Rules(
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
) -> Iterator[Sequence]:
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
        yield Sequence(
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

    def rows(self, own: int | np.ndarray, first: int, last: int) -> Rows:
        """Some of a sequence, or of its pages: (last - first, kv_heads, dim)."""
        if isinstance(own, int):
            return Rows([self._numbers(self._array[own, first:last])])
        size = self._array.shape[1]
        begin = first // size
        parts, at = [], begin * size
        for part in self._paged(own[begin:]):
            parts.append(self._numbers(part[max(first - at, 0) : max(last - at, 0)]))
            at += len(part)
        return Rows(parts)

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


_KEPT = {"q": FLOATS, "k": {dtypes.q8_0, dtypes.f16, dtypes.bf16}}
OPS = [
    OpImpl(op="attention", fn=attention, dtypes=FLOATS),
    OpImpl(op="attention_lse", fn=attention_lse, dtypes=FLOATS),
    OpImpl(op="qattention", fn=qattention, dtypes=_KEPT),
    OpImpl(op="qattention_lse", fn=qattention_lse, dtypes=_KEPT),
]
