"""Order along one dimension."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from math import prod
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

FEW: Final = MODULE.constant("FEW", BLOCK)
"""Up to so many of a row are sought among the best of its tiles, without sorting it."""

FEW_TILE: Final = MODULE.constant("FEW_TILE", 16 * BLOCK)
"""Elements of such a tile: those that come first are selected, where keys have up to 32 bits."""

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
_SELECT: Final = MODULE.kernel("few", ("PPPPP", _SHAPE, "2"))


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
        tile: elements of a part.
        parts: tiles of a row.
        kept: entries that each of them keeps.
        group: rows that are sorted at a time.
        half: bytes of their entries; twice as much is needed.
    """

    entries: _Entries
    tile: int
    parts: int
    kept: int
    group: int
    half: int


@lru_cache(maxsize=4096)
def _plan(rows: int, width: int, keep: int, size: int) -> _Plan:
    """For elements of ``size`` bytes."""
    entries = _SHORT if size < dtypes.i64.block_bytes and width < (1 << 32) - 1 else _LONG
    if width <= TILE:
        return _Plan(entries, TILE, 1, keep, rows, 0)
    tile = FEW_TILE if keep <= FEW and entries is _SHORT else TILE
    parts, kept = -(-width // tile), keep if keep <= FEW else TILE
    if parts == 1:
        return _Plan(entries, tile, 1, keep, rows, 0)
    each = parts * kept * entries.size
    group = min(rows, max(1, SPACE // (2 * each)))
    return _Plan(entries, tile, parts, kept, group, group * each)


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
    out = indices if values is None else values
    if out is None or out.numel == 0:
        return
    device: Any = out.device
    wanted = order_bytes(x, keep, dim)
    space = device.keep(Space).lent(device, wanted) if wanted else nullcontext()
    to = 0 if values is None else pointer(values), 0 if indices is None else pointer(indices)
    with space as memory:
        order(to, out.strides, x, keep, dim, memory.ptr if memory else 0, descending=descending)


def order_bytes(x: Tensor, keep: int, dim: int) -> int:
    """What :func:`order` works in; none where there is nothing to order."""
    rows = prod(_without(x.shape, dim))
    if rows * keep == 0:
        return 0
    return 2 * _plan(rows, x.shape[dim], keep, x.dtype.block_bytes).half


def order(
    to: tuple[int, int],
    strides: Shape,
    x: Tensor,
    keep: int,
    dim: int,
    at: int,
    *,
    descending: bool,
) -> None:
    """
    Queue what orders rows.

    Args:
        to: the addresses of elements and of their places; 0 where they are not wanted.
        strides: of both.
        x: the elements.
        keep: of each row so many, the first ones in order; at least 1.
        dim: from 0, along which rows are.
        at: the address of :func:`order_bytes`.
        descending: largest first.
    """
    device: Any = x.device
    outer = _without(x.shape, dim)
    own, given = _without(strides, dim), _without(x.strides, dim)
    layout, rows, _, starts = strided_of(outer, (outer, given), (outer, own))
    width, size = x.shape[dim], x.dtype.block_bytes
    plan = _plan(rows, width, keep, size)
    values, indices = to
    for start, beyond in starts:
        tensors = (
            values + beyond * size if values else 0,
            indices + beyond * dtypes.i64.block_bytes if indices else 0,
            pointer(x) + start * size,
        )
        for first in range(0, rows, plan.group):
            count = min(plan.group, rows - first)
            shape = (first, count, x.strides[dim], keep, strides[dim])
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
    parts, kept, tile = plan.parts, plan.kept, plan.tile
    whole = TILE.bit_length() - 1
    there, here = spaces

    def sorted_tiles(to: int, from_: int, given: int, parts: int) -> None:
        bits = max(given - 1, 1).bit_length() if parts == 1 else whole
        own, kernel, each = keep if parts == 1 else kept, tiles, TILE >> bits
        if tile == FEW_TILE:
            own, kernel, each = kept, _SELECT, 1
        blocks = min(-(-rows * parts // each), MAX_BLOCKS)
        kernel(
            device, blocks, to, from_, *tensors, *shape, given, parts, own, *kind, bits, 0, layout
        )

    sorted_tiles(here if parts > 1 else 0, 0, width, parts)
    if kept < TILE:
        while parts > 1:
            given, parts = parts * kept, -(-parts * kept // tile)
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


def _space_bytes(x: Tensor, keep: int, dim: int) -> int:
    return space_bytes(order_bytes(x, keep, dim % len(x.shape)))


def _workspace_of_all(x: Tensor, /, dim: int = -1, *, descending: bool = False) -> int:
    del descending
    return _space_bytes(x, x.shape[dim], dim)


def _workspace_of_some(x: Tensor, /, k: int, dim: int = -1, *, largest: bool = True) -> int:
    del largest
    return _space_bytes(x, k, dim)


def _record(name: str, fn: Any, workspace: Any) -> OpImpl:
    made = implementation(name, fn, dtypes.PLAIN, in_place=False)
    return replace(made, workspace=workspace)


OPS: Final = [
    _record("sort", sort, _workspace_of_all),
    _record("argsort", argsort, _workspace_of_all),
    _record("topk", topk, _workspace_of_some),
]
