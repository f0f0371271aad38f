"""What attention kernels have in common: their arguments, and how they are packed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import cast

from propolis import dtypes
from propolis_rocm_kernels._constants import ACCUMULATOR
from propolis_rocm_kernels._constants import COUNTERS
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._product import in_packs
from propolis_rocm_kernels._scratch import PARTIALS
from propolis_rocm_kernels._scratch import scratch
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor
    from propolis.layout import Shape
    from propolis.ops.attention import Window
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_kernels._kernels import Kernel

    Choose = Callable[..., "Plan"]

MAX_DIM: Final = 256
"""Elements of a head that the kernels hold; of wider values each row of blocks has so many."""

WIDEST: Final = 1024
"""Elements of a head, at most: image models' decoders have 512, latent attention 576.  f64 has no
registers for more than :data:`MAX_DIM`."""

SIDE: Final = 64
"""Queries of a block, and keys it looks at together, where there are many."""

FEW: Final = 4
"""Queries of a sequence, up to which each has a block of its own."""

DECODE_THREADS: Final = 256
"""Threads of a block that has one query of one head, or of a few."""

GROUP: Final = 4
"""Heads that a block has a query of, where they share keys and values in a plain call: these are
read once."""

MOST_PARTS: Final = 64
"""Blocks that share the keys of a query, at most."""

AHEAD: Final = 2
"""Keys that threads look at together, of each that their block shares among them."""

_PART: Final = 8
"""Parts whose merging takes as long as looking at keys once more: on an H200, of grouped heads of
64 and 128 elements, and 640 to 8192 keys; of others, and other cards, it was not measured."""

_FILLING: Final = 2
"""Blocks of a compute unit, of which there are to be so many."""

_SHAPE: Final = Structure(
    "AttentionShape",
    {
        **dict.fromkeys(("q", "k", "v", "bias"), "4q"),
        "table": "2q",
        **dict.fromkeys(("kv_len", "alibi", "q_start", "threads", "parts"), "q"),
        **dict.fromkeys(("scale", "softcap"), "d"),
        **dict.fromkeys(("batch", "total", "heads", "group", "dim", "value_dim"), "i"),
        **dict.fromkeys(("capacity", "left", "right", "page_size", "pages", "wide_bias"), "i"),
    },
)
ARGUMENTS: Final = (11 * "P", _SHAPE)
"""Of every kernel."""

_ALL: Final = -1


class Plan(NamedTuple):
    """
    How a call is launched.

    Attributes:
        kernel: of those.
        blocks: of the launch.
        threads: of each.
        parts: blocks that share the keys of a query.
        shared: bytes of dynamic shared memory.
    """

    kernel: Kernel
    blocks: int | tuple[int, int, int]
    threads: int
    parts: int = 1
    shared: int = 0


class Options(NamedTuple):
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
    if reason := too_wide(q, v, MAX_DIM if q.dtype is dtypes.f64 else WIDEST):
        return reason
    slots = k.shape[1] * (1 if block_table is None else block_table.shape[1])
    if slots >= 1 << 30 or q.shape[0] * q.shape[1] * q.shape[2] > MAX_BLOCKS:
        return f"{slots} keys for {q.shape[0] * q.shape[1]} queries of {q.shape[2]} heads: too many"
    return None


def too_wide(q: Tensor, v: Tensor, most: int = MAX_DIM) -> str | None:
    """Why heads are not for kernels that hold so many elements of one; None where they are."""
    if max(q.shape[3], v.shape[3]) > most:
        return f"head_dim {q.shape[3]} and value_dim {v.shape[3]}: up to {most} each"
    return None


def attend(
    choose: Choose,
    out: Tensor,
    lse: Tensor | None,
    qkv: tuple[Tensor, Tensor, Tensor],
    options: Options,
    others: tuple[Tensor | None, ...],
) -> None:
    """
    Queue a call.

    Args:
        choose: gives the plan: by shapes alone, never by lengths; takes q, k, v, how many
            sequences there are, the most keys that a query sees, whether the batch is ragged, and
            whether the call is plain: without a bias and ALiBi.
        out: as the op has it.
        lse: likewise; None where it is not wanted.
        qkv: queries, keys, values.
        options: what else the call says.
        others: kv_len, bias, alibi, q_start, block_table.
    """
    q, k, v = qkv
    kv_len, bias, alibi, q_start, table = others
    rows, total, heads, dim = q.shape
    value_dim = v.shape[3]
    if out.numel == 0 and (lse is None or lse.numel == 0):
        return
    batch = rows if q_start is None else q_start.shape[0] - 1
    pages, slots = (0, 0) if table is None else (k.shape[0], k.shape[1])
    capacity = k.shape[1] if table is None else slots * table.shape[1] * (pages > 0)
    left, right = options.reach()
    seen = capacity if left < 0 or right < 0 else min(capacity, left + 1 + right)
    plain = bias is None and alibi is None
    plan: Plan = choose(q, k, v, batch, seen, ragged=q_start is not None, plain=plain)
    if value_dim == 0:  # there is nothing to read of v
        v = k
    bias_strides: Shape = (0, 0, 0, 0)
    if bias is not None:
        shape = (batch, heads, total, k.shape[1])
        bias_strides = bias.layout.broadcast_to(shape).strides
    steps = (0 if t is None else t.strides[0] for t in (kv_len, alibi, q_start))
    tensors = (out, lse, q, k, v, kv_len, bias, alibi, q_start, table)
    plan.kernel(
        out.device,
        plan.blocks,
        *(0 if t is None else _address(t) for t in tensors),
        scratch(cast("RocmDevice", out.device)) if plan.parts > 1 else 0,
        *(*q.strides, *_strides(k), *_strides(v), *bias_strides),
        *((0, 0) if table is None else table.strides),
        *steps,
        plan.threads,
        plan.parts,
        dim**-0.5 if options.scale is None else options.scale,
        options.softcap,
        *(batch, total, heads, heads // k.shape[2], dim, value_dim, capacity),
        *(left, right),
        *(slots, pages, bias is not None and bias.dtype is not q.dtype),
        threads=plan.threads,
        shared=plan.shared,
    )


def functions(choose: Choose) -> tuple[Callable[..., None], Callable[..., None]]:
    """An op of attention, and that with ``lse``, whose plans are chosen so: see :func:`attend`."""

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
        options = Options(scale, causal, window, softcap)
        attend(choose, out, None, (q, k, v), options, (kv_len, bias, alibi, q_start, block_table))

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
        options = Options(scale, causal, window, softcap)
        attend(choose, out, lse, (q, k, v), options, (kv_len, bias, alibi, q_start, block_table))

    return attention, attention_lse


def _address(x: Tensor) -> int:
    return x.ptr if x.dtype.is_block else pointer(x)


def _strides(x: Tensor) -> Shape:
    """Strides as kernels count them: in elements, of blocks in bytes."""
    if not x.dtype.is_block:
        return x.strides
    *strides, _ = x.strides
    return (*map(x.dtype.nbytes, strides), 1)


def few_queries(total: int, batch: int, *, ragged: bool) -> bool:
    """Whether each query has a block of its own."""
    return total <= FEW * (batch if ragged else 1)


def decoding(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, keys: int, heads: int) -> Plan:
    """
    The plan of a kernel of which each block has one query of some heads.

    Args:
        kernel: it.
        q: queries.
        k: keys.
        v: values.
        keys: the most that a query sees.
        heads: of a block.
    """
    units = cast("RocmDevice", q.device).compute_units
    groups = -(-q.shape[2] // k.shape[2] // heads) * k.shape[2]
    outputs = q.shape[0] * q.shape[1] * groups
    room = PARTIALS * ACCUMULATOR // (heads * (v.shape[3] + 2) * dtypes.f32.block_bytes)
    lanes = lanes_of(q.shape[3], v.shape[3])
    most = min(MOST_PARTS, _FILLING * units // outputs, room // outputs)
    looks = -(-keys // (DECODE_THREADS // lanes * AHEAD))
    parts = parts_of(looks, most) if outputs <= COUNTERS else 1
    return Plan(kernel, outputs * parts, DECODE_THREADS, parts)


@lru_cache(maxsize=4096)
def parts_of(looks: int, most: int) -> int:
    """
    How many blocks share keys: each looks at its own so many times, and one merges what all found.

    Args:
        looks: at all keys, as many at a time as a block has threads for.
        most: blocks.

    >>> parts_of(1, 64), parts_of(10, 64), parts_of(66, 64), parts_of(128, 33)
    (1, 10, 22, 32)
    """
    return min(range(1, max(min(most, looks), 1) + 1), key=lambda n: n / _PART + -(-looks // n))


def lanes_of(dim: int, value_dim: int) -> int:
    """Threads that have one query together."""
    return next(n for n in (8, 16, 32) if n * RUN >= max(dim, value_dim))


def columns_of(value_dim: int) -> int:
    """Tiles of values side by side."""
    return next(n for n in (1, 2, 4) if n * SIDE >= value_dim)


def slices_of(value_dim: int) -> int:
    """Rows of blocks, of which each has other values."""
    return max(-(-value_dim // MAX_DIM), 1)


def tiles_of(total: int, batch: int, *, ragged: bool, side: int = SIDE) -> int:
    """Tiles of queries of all sequences; where they are ragged, at most so many."""
    return total // side + batch if ragged else -(-total // side) * batch


def rows_in_packs(x: Tensor) -> bool:
    """Whether every run of its rows may be loaded at once."""
    *strides, step = x.strides
    at, dtype = pointer(x), x.dtype
    whole = step == 1 and x.shape[3] % RUN == 0 and x.numel > 0
    return whole and all(in_packs(at, dtype, stride) for stride in strides)
