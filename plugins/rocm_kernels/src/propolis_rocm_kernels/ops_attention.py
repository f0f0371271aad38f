"""Attention: decoding, a query at a time, and many queries at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis import dtypes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._product import in_packs
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.layout import Shape
    from propolis.ops.attention import Window
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("attention")

MAX_DIM: Final = MODULE.constant("MAX_DIM", 256)
"""Elements of a head that the kernels hold."""

SIDE: Final = MODULE.constant("SIDE", 64)
"""Queries of a block, and keys it looks at together, where there are many."""

FEW: Final = 4
"""Queries of a sequence, up to which each has a block of its own."""

DECODE_THREADS: Final = MODULE.constant("DECODE_THREADS", 512)
"""Threads of a block that has one query, where there are few such blocks."""

LESS_THREADS: Final = 64
"""The same where there are many, which fill a device with fewer threads each, or few keys."""

FEW_KEYS: Final = 16
"""Keys of a sequence, up to which more threads would have nothing to look at."""

_SHAPE: Final = Structure(
    "AttentionShape",
    {
        **dict.fromkeys(("q", "k", "v", "bias"), "4q"),
        "table": "2q",
        **dict.fromkeys(("kv_len", "alibi", "q_start", "threads"), "q"),
        **dict.fromkeys(("scale", "softcap"), "d"),
        **dict.fromkeys(("batch", "total", "heads", "group", "dim", "value_dim"), "i"),
        **dict.fromkeys(("capacity", "left", "right", "page_size", "pages", "wide_bias"), "i"),
    },
)
_ARGUMENTS: Final = (10 * "P", _SHAPE)
_TILED: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_ANY: Final = {d: MODULE.kernel(f"any_{d.name}", _ARGUMENTS) for d in dtypes.FLOATS}
_DECODE: Final = {
    (d, n): MODULE.kernel(f"decode{n}_{d.name}", _ARGUMENTS) for d in _TILED for n in (8, 16, 32)
}
_PREFILL: Final = {
    (d, n): MODULE.kernel(f"prefill{n}_{d.name}", _ARGUMENTS) for d in _TILED for n in (1, 2, 4)
}
_ALL: Final = -1


class _Options(NamedTuple):
    """What a call says beside its tensors."""

    scale: float | None
    causal: bool
    window: Window | None
    softcap: float

    def reach(self) -> tuple[int, int]:
        """Keys seen to the left and right of a query's own; -1 for all."""
        left, right = self.window or (_ALL, _ALL)
        limit = 1 << 30  # sequences are shorter: sums stay within 32 bits
        return min(left, limit), 0 if self.causal else min(right, limit)


def supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    block_table: Tensor | None = None,
    **_: Any,
) -> str | None:
    """None, or why not: heads too wide for the kernels, or too many."""
    del kv_len
    if max(q.shape[3], v.shape[3]) > MAX_DIM:
        return f"head_dim {q.shape[3]} and value_dim {v.shape[3]}: up to {MAX_DIM} each"
    slots = k.shape[1] * (1 if block_table is None else block_table.shape[1])
    if slots >= 1 << 30 or q.shape[0] * q.shape[1] * q.shape[2] > MAX_BLOCKS:
        return f"{slots} keys for {q.shape[0] * q.shape[1]} queries of {q.shape[2]} heads: too many"
    return None


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
    """``softmax(cap(q @ k.T * scale) + bias + mask) @ v`` for each head."""
    options = _Options(scale, causal, window, softcap)
    _attend(out, None, (q, k, v), options, (kv_len, bias, alibi, q_start, block_table))


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
    options = _Options(scale, causal, window, softcap)
    _attend(out, lse, (q, k, v), options, (kv_len, bias, alibi, q_start, block_table))


def _attend(
    out: Tensor,
    lse: Tensor | None,
    qkv: tuple[Tensor, Tensor, Tensor],
    options: _Options,
    others: tuple[Tensor | None, ...],
) -> None:
    q, k, v = qkv
    kv_len, bias, alibi, q_start, table = others
    rows, total, heads, dim = q.shape
    value_dim = v.shape[3]
    if out.numel == 0 and (lse is None or lse.numel == 0):
        return
    batch = rows if q_start is None else q_start.shape[0] - 1
    pages, slots = (0, 0) if table is None else (k.shape[0], k.shape[1])
    capacity = k.shape[1] if table is None else slots * table.shape[1] * (pages > 0)
    kernel, blocks, threads = _choose(q, k, v, batch, capacity, ragged=q_start is not None)
    if value_dim == 0:  # there is nothing to read of v
        v = k
    bias_strides: Shape = (0, 0, 0, 0)
    if bias is not None:
        shape = (batch, heads, total, k.shape[1])
        bias_strides = bias.layout.broadcast_to(shape).strides
    steps = (0 if t is None else t.strides[0] for t in (kv_len, alibi, q_start))
    tensors = (out, lse, q, k, v, kv_len, bias, alibi, q_start, table)
    kernel(
        out.device,
        blocks,
        *(0 if t is None else pointer(t) for t in tensors),
        *(*q.strides, *k.strides, *v.strides, *bias_strides),
        *((0, 0) if table is None else table.strides),
        *steps,
        threads,
        dim**-0.5 if options.scale is None else options.scale,
        options.softcap,
        *(batch, total, heads, heads // k.shape[2], dim, value_dim, capacity),
        *options.reach(),
        *(slots, pages, bias is not None and bias.dtype is not q.dtype),
        threads=threads,
    )


def _choose(
    q: Tensor, k: Tensor, v: Tensor, batch: int, capacity: int, *, ragged: bool
) -> tuple[Kernel, int, int]:
    """The kernel, and its blocks and their threads: by shapes alone, never by lengths."""
    rows, total, heads, dim = q.shape
    value_dim, dtype = v.shape[3], q.dtype
    each = rows * total * heads
    few = total <= FEW * (batch if ragged else 1)
    if dtype not in _TILED or not all(map(_in_packs, (q, k, v))):
        wide = few and capacity > FEW_KEYS
        return _ANY[dtype], each, DECODE_THREADS if wide else LESS_THREADS
    if few:
        lanes = next(n for n in (8, 16, 32) if n * RUN >= max(dim, value_dim))
        return _DECODE[dtype, lanes], each, DECODE_THREADS
    columns = next(n for n in (1, 2, 4) if n * SIDE >= value_dim)
    tiles = total // SIDE + batch if ragged else -(-total // SIDE) * batch
    return _PREFILL[dtype, columns], tiles * heads, BLOCK


def _in_packs(x: Tensor) -> bool:
    """Whether every run of its rows may be loaded at once."""
    *strides, step = x.strides
    at, dtype = pointer(x), x.dtype
    whole = step == 1 and x.shape[3] % RUN == 0 and x.numel > 0
    return whole and all(in_packs(at, dtype, stride) for stride in strides)


def _record(name: str, fn: Any) -> Any:
    return replace(implementation(name, fn, dtypes.FLOATS, in_place=False), supports=supports)


OPS: Final = [_record("attention", attention), _record("attention_lse", attention_lse)]
