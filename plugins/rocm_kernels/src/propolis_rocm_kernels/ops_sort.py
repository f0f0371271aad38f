"""Order along one dimension."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
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
from propolis_rocm_kernels._kinds import KINDS
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor
    from propolis.layout import Shape
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("sort")

TILE: Final = MODULE.constant("TILE", 8 * BLOCK)
"""Elements that a block sorts in shared memory."""

FEW: Final = TILE // 8
"""Up to so many of a row are sought among the best of its tiles, without sorting it."""

SPACE: Final = 1 << 26
"""Bytes of entries that rows are sorted in, many of them in turns; more only for a longer row."""

_SHAPE: Final = Structure(
    "SortShape",
    {
        **dict.fromkeys(("first", "rows", "step", "keep", "keep_step"), "q"),
        **dict.fromkeys(("given", "parts", "kept"), "q"),
        **dict.fromkeys(("kind", "descending", "bits", "reserved"), "i"),
    },
)


class _Entries(NamedTuple):
    """The kernels for one kind of entry, and its bytes."""

    tiles: Kernel
    merge: Kernel
    size: int


def _entries(name: str, size: int) -> _Entries:
    return _Entries(
        MODULE.kernel(f"tiles_{name}", ("PPPPP", _SHAPE, "2")),
        MODULE.kernel(f"merge_{name}", ("PPPPP", _SHAPE, "q2")),
        size,
    )


_SHORT: Final = _entries("short", 8)
_LONG: Final = _entries("long", 16)


def sort(out: Tensor, x: Tensor, /, dim: int = -1, *, descending: bool = False) -> None:
    """The elements in order."""
    dim %= len(x.shape)
    _order(out, None, x, x.shape[dim], dim, descending=descending)


def argsort(out: Tensor, x: Tensor, /, dim: int = -1, *, descending: bool = False) -> None:
    """The indices of the elements in order."""
    dim %= len(x.shape)
    _order(None, out, x, x.shape[dim], dim, descending=descending)


def topk(
    values: Tensor,
    indices: Tensor,
    x: Tensor,
    /,
    k: int,
    dim: int = -1,
    *,
    largest: bool = True,
) -> None:
    """The first ``k`` in order."""
    _order(values, indices, x, k, dim % len(x.shape), descending=largest)


class _Plan(NamedTuple):
    """
    How rows are sorted.

    Attributes:
        entries: the kernels.
        parts: tiles of a row.
        kept: entries that each of them keeps.
        group: rows that are sorted at a time.
        half: bytes of their entries; twice as much is needed.
    """

    entries: _Entries
    parts: int
    kept: int
    group: int
    half: int


@lru_cache(maxsize=4096)
def _plan(rows: int, width: int, keep: int, size: int) -> _Plan:
    """For elements of ``size`` bytes."""
    entries = _SHORT if size < dtypes.i64.block_bytes and width < (1 << 32) - 1 else _LONG
    parts = -(-width // TILE)
    if parts == 1:
        return _Plan(entries, 1, keep, rows, 0)
    kept = keep if keep <= FEW else TILE
    each = parts * kept * entries.size
    group = min(rows, max(1, SPACE // (2 * each)))
    return _Plan(entries, parts, kept, group, group * each)


def _order(
    values: Tensor | None,
    indices: Tensor | None,
    x: Tensor,
    keep: int,
    dim: int,
    *,
    descending: bool,
) -> None:
    """The first ``keep`` of each row along ``dim``, as elements and as indices."""
    out = values or indices
    if out is None or out.numel == 0:
        return
    outer = _without(x.shape, dim)
    own, given = _without(out.strides, dim), _without(x.strides, dim)
    layout, rows, _, starts = strided_of(outer, (outer, given), (outer, own))
    width, size = x.shape[dim], x.dtype.block_bytes
    plan = _plan(rows, width, keep, size)
    device: Any = out.device
    space = device.keep(Space).lent(device, 2 * plan.half) if plan.half else nullcontext()
    with space as memory:
        at = memory.ptr if memory else 0
        for start, to in starts:
            tensors = (
                0 if values is None else pointer(values) + to * size,
                0 if indices is None else pointer(indices) + to * dtypes.i64.block_bytes,
                pointer(x) + start * size,
            )
            for first in range(0, rows, plan.group):
                count = min(plan.group, rows - first)
                shape = (first, count, x.strides[dim], keep, out.strides[dim])
                kind = KINDS[x.dtype], int(descending)
                _launch(device, plan, (at, at + plan.half), tensors, shape, kind, width, layout)


def _launch(
    device: Any,
    plan: _Plan,
    spaces: tuple[int, int],
    tensors: tuple[int, int, int],
    shape: tuple[int, ...],
    kind: tuple[int, int],
    width: int,
    layout: bytes,
) -> None:
    """Sort a group of rows: tiles, and what makes one row of them."""
    tiles, merge, _ = plan.entries
    rows, keep = shape[1], shape[3]
    parts, kept = plan.parts, plan.kept
    whole = TILE.bit_length() - 1
    there, here = spaces

    def sorted_tiles(to: int, from_: int, given: int, parts: int) -> None:
        bits = max(given - 1, 1).bit_length() if parts == 1 else whole
        blocks = min(-(-rows * parts // (TILE >> bits)), MAX_BLOCKS)
        tail = given, parts, keep if parts == 1 else kept, *kind, bits, 0
        tiles(device, blocks, to, from_, *tensors, *shape, *tail, layout)

    sorted_tiles(here if parts > 1 else 0, 0, width, parts)
    if kept < TILE:
        while parts > 1:
            given, parts = parts * kept, -(-parts * kept // TILE)
            there, here = here, there
            sorted_tiles(here if parts > 1 else 0, there, given, parts)
        return
    run, blocks = TILE, min(rows * parts, MAX_BLOCKS)
    while run < parts * TILE:
        there, here = here, there
        last = 2 * run >= parts * TILE
        tail = width, parts, kept, *kind, whole, 0, run
        merge(device, blocks, 0 if last else here, there, *tensors, *shape, *tail, layout)
        run *= 2


def _without(values: Shape, dim: int) -> Shape:
    return values[:dim] + values[dim + 1 :]


def _workspace(x: Tensor, keep: int, dim: int) -> int:
    dim %= len(x.shape)
    rows = 1
    for size in _without(x.shape, dim):
        rows *= size
    if rows * keep == 0:
        return 0
    half = _plan(rows, x.shape[dim], keep, x.dtype.block_bytes).half
    return space_bytes(2 * half)


def _workspace_of_all(x: Tensor, /, dim: int = -1, *, descending: bool = False) -> int:
    del descending
    return _workspace(x, x.shape[dim], dim)


def _workspace_of_some(x: Tensor, /, k: int, dim: int = -1, *, largest: bool = True) -> int:
    del largest
    return _workspace(x, k, dim)


def _record(name: str, fn: Any, workspace: Any) -> OpImpl:
    made = implementation(name, fn, dtypes.PLAIN, in_place=False)
    return replace(made, workspace=workspace)


OPS: Final = [
    _record("sort", sort, _workspace_of_all),
    _record("argsort", argsort, _workspace_of_all),
    _record("topk", topk, _workspace_of_some),
]
