"""Places drawn by softmax, among the likeliest where that is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis import dtypes
from propolis_rocm_hip.space import Space
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._signature import Structure
from propolis_rocm_kernels.ops_sort import order
from propolis_rocm_kernels.ops_sort import order_bytes


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("random_draw")

HEAD: Final = BLOCK
"""So many likeliest of each row are looked at before all others, one by each thread."""

PART: Final = MODULE.constant("DRAWN_PART", 16 * BLOCK)
"""Places of a row that a block looks at, where several share it."""

_KINDS: Final = sorted(dtypes.FLOATS - {dtypes.f64}, key=str)
_PER_ROW: Final = "keys", "temperature", "top_k", "top_p", "min_p"
_FIELDS: Final = "rows", "places", "row", "step", *_PER_ROW, "head", "k", "parts"
_SHAPE: Final = Structure("DrawShape", dict.fromkeys(_FIELDS, "q"))
_ROWS: Final = {d: MODULE.kernel(f"rows_{d.name}", ("P" * 9, _SHAPE)) for d in _KINDS}
_PARTS: Final = {d: MODULE.kernel(f"parts_{d.name}", ("P" * 6, _SHAPE)) for d in _KINDS}
_SORTED: Final = MODULE.kernel("sorted_f64", ("P" * 8, _SHAPE))
_MERGE: Final = MODULE.kernel("merge", "PPqq")
_LEADER: Final = 16
"""Bytes of what wins in a part."""
# What rows are numbered by, in entries that are sorted.
_MOST: Final = (1 << 32) - 1
# Whose weights, integers of up to 2**40, have a sum of 64 bits.
_MOST_WEIGHED: Final = 1 << 24


def draw(
    out: Tensor,
    logits: Tensor,
    keys: Tensor,
    temperature: Tensor,
    /,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    k: int = 0,
) -> None:
    """The exponential race of those that cuts leave."""
    plan = _plan(logits, k, top_k=top_k, top_p=top_p)
    if plan.rows == 0:
        return
    device: Any = logits.device
    given = [keys, temperature, top_k, top_p, min_p]
    numbers = [0 if one is None else pointer(one) for one in given]
    steps = [0 if one is None else one.strides[0] for one in given]
    shape = *logits.shape, *logits.strides, *steps, plan.head, k, plan.parts
    with device.keep(Space).lent(device, plan.nbytes) as memory:
        ids = memory.ptr
        values = ids + plan.rows * plan.head * dtypes.i64.block_bytes
        order((values, ids), (plan.head, 1), logits, plan.head, 1, ids + plan.kept, descending=True)
        if logits.dtype is dtypes.f64:
            blocks = min(plan.rows, MAX_BLOCKS)
            _SORTED(device, blocks, pointer(out), *numbers, values, ids, *shape)
            return
        tensors = pointer(logits), *numbers
        if plan.parts == 1:
            blocks = min(plan.rows, MAX_BLOCKS)
            _ROWS[logits.dtype](device, blocks, pointer(out), *tensors, values, ids, *shape)
            return
        to = ids + plan.kept  # sorting is done with it
        blocks = min(plan.rows * plan.parts, MAX_BLOCKS)
        keys_at, heats, _, _, least = numbers
        tensors = pointer(logits), keys_at, heats, least, ids
        _PARTS[logits.dtype](device, blocks, to, *tensors, *shape)
        _MERGE(device, min(plan.rows, MAX_BLOCKS), pointer(out), to, plan.rows, plan.parts)


class _Plan(NamedTuple):
    """
    How rows are drawn from.

    Attributes:
        rows: how many there are.
        head: of how many likeliest is asked first.
        parts: blocks that share a row.
        kept: bytes of the likeliest and their places.
        nbytes: of these, and of what comes behind: what they are sought in, then what parts find.
    """

    rows: int
    head: int
    parts: int
    kept: int
    nbytes: int


def _plan(logits: Tensor, k: int, *, top_k: Tensor | None, top_p: Tensor | None) -> _Plan:
    rows, places = logits.shape
    if logits.dtype is dtypes.f64:
        head = min(k, places) if k else places
        kept = rows * head * 2 * dtypes.i64.block_bytes
        return _Plan(rows, head, 1, kept, kept + order_bytes(logits, head, 1))
    cut = bool(k) or top_k is not None or top_p is not None
    head = min(k or HEAD, HEAD, places) if cut else 1
    parts = 1 if cut else max(-(-places // PART), 2)
    each = dtypes.i64.block_bytes + logits.dtype.block_bytes
    kept = -(-rows * head * each // _LEADER) * _LEADER
    behind = max(order_bytes(logits, head, 1), 0 if cut else rows * parts * _LEADER)
    return _Plan(rows, head, parts, kept, kept + behind)


def _workspace(
    logits: Tensor,
    *_: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    k: int = 0,
) -> int:
    del min_p
    return space_bytes(_plan(logits, k, top_k=top_k, top_p=top_p).nbytes)


def _supports(
    logits: Tensor, *_: Tensor, top_p: Tensor | None = None, **_others: Any
) -> str | None:
    most = _MOST if top_p is None else _MOST_WEIGHED
    if logits.shape[1] >= most:
        return f"{logits.shape[1]} places; supported: fewer than {most}"
    return None


OPS: Final = [
    replace(
        implementation("draw", draw, dtypes.FLOATS, in_place=False, workspace=_workspace),
        supports=_supports,
    )
]
