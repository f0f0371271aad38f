"""Rows and elements by index."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pack_of
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._kinds import KINDS
from propolis_rocm_kernels._layouts import strided_of


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("indexing")

_IDS: Final = (dtypes.u8, dtypes.u32, dtypes.i16, dtypes.i32, dtypes.i64)
ID_KINDS: Final = {d: KINDS[d] for d in _IDS}
"""How kernels are told the dtype of ids."""

_SIZES: Final = (1, 2, 4, 8)
_TAKE: Final = {n: MODULE.kernel(f"take_b{n}", "PPPqqqi2") for n in _SIZES}
_TAKE_AS: Final = {
    (a, b): MODULE.kernel(f"take_{a.name}_{b.name}", "PPPqqqi2")
    for a in dtypes.FLOATS
    for b in dtypes.FLOATS
    if a is not b
}
_WRITE: Final = "PPPqqqqqqii3"
_SCATTER: Final = {n: MODULE.kernel(f"scatter_b{n}", _WRITE) for n in _SIZES}
_SCATTER_ADD: Final = {d: MODULE.kernel(f"scatter_add_{d.name}", _WRITE) for d in dtypes.PLAIN}

# Ids of a line that every thread may look through.
_MANY: Final = 4096


def embedding(out: Tensor, ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> None:
    """``table[ids]``, one row for each id."""
    del dtype  # the output's
    own, wanted = table.dtype, out.dtype
    kernel = _TAKE[own.block_bytes] if own is wanted else _TAKE_AS[own, wanted]
    row, step = table.layout.strides
    at = ids.layout
    strides = (*(0 for _ in at.shape), step)
    _take(kernel, out, table, ids, strides, (*at.strides, 0), table.layout.shape[0], row)


def index_select(out: Tensor, x: Tensor, ids: Tensor, /, dim: int = 0) -> None:
    """The slices of one dimension that ``ids`` names."""
    layout = x.layout
    dim %= len(layout.shape)
    strides = layout.strides
    of_ids = tuple(ids.layout.strides[0] if d == dim else 0 for d in range(len(strides)))
    _gather(out, x, ids, of_ids, dim)


def gather(out: Tensor, x: Tensor, ids: Tensor, /, dim: int = -1) -> None:
    """``out[i, j, k] = x[ids[i, j, k], j, k]`` for dim 0, and so on for others."""
    _gather(out, x, ids, ids.layout.strides, dim % len(x.layout.shape))


def _gather(out: Tensor, x: Tensor, ids: Tensor, of_ids: Shape, dim: int) -> None:
    layout = x.layout
    strides = layout.strides
    others = (*strides[:dim], 0, *strides[dim + 1 :])
    kernel = _TAKE[x.dtype.block_bytes]
    _take(kernel, out, x, ids, others, of_ids, layout.shape[dim], strides[dim])


def _take(
    kernel: Kernel,
    out: Tensor,
    x: Tensor,
    ids: Tensor,
    strides: Shape,
    of_ids: Shape,
    size: int,
    stride: int,
) -> None:
    """Read ``x`` at each place of ``out``, moved by ``stride`` times the id there."""
    shape = out.layout.shape
    if out.layout.numel == 0:
        return
    packed, numel, run, starts = strided_of(shape, (shape, strides), (shape, of_ids))
    of_out, of_x = out.dtype.block_bytes, x.dtype.block_bytes
    pack = pack_of(max(of_out, of_x), heavy=True)
    blocks = blocks_for(numel, pack if run >= pack and of_ids[-1] == 0 else 1)
    kind, to = ID_KINDS[ids.dtype], pointer(out)
    for first, second in starts:
        at = pointer(ids) + second * ids.dtype.block_bytes
        from_ = pointer(x) + first * of_x
        kernel(out.device, blocks, to, from_, at, numel, size, stride, kind, packed)
        to += numel * of_out


def scatter(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = -1) -> None:
    """``target[ids[i, j, k], j, k] = source[i, j, k]`` for dim 0, in place."""
    kernel = _SCATTER[target.dtype.block_bytes]
    serial = ids.layout.shape[dim] > _MANY
    _write(kernel, target, ids, source, ids.layout.strides, dim, serial=serial)


def scatter_add(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = -1) -> None:
    """``target[ids[i, j, k], j, k] += source[i, j, k]`` for dim 0, in place."""
    _add(target, ids, source, ids.layout.strides, dim)


def index_add(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = 0) -> None:
    """Add slices of ``source`` to the slices of ``target`` that ``ids`` names, in place."""
    rank = len(target.layout.shape)
    dim %= rank
    step = ids.layout.strides[0]
    _add(target, ids, source, tuple(step if d == dim else 0 for d in range(rank)), dim)


def _add(target: Tensor, ids: Tensor, source: Tensor, of_ids: Shape, dim: int) -> None:
    dtype = target.dtype
    # Sums of narrow floats are rounded once, so one thread must see all of an element's.
    may_be_serial = dtype.is_integer or dtype.block_bytes >= dtypes.f32.block_bytes
    serial = may_be_serial and source.layout.shape[dim] > _MANY
    _write(_SCATTER_ADD[dtype], target, ids, source, of_ids, dim, serial=serial)


def _write(
    kernel: Kernel,
    target: Tensor,
    ids: Tensor,
    source: Tensor,
    of_ids: Shape,
    dim: int,
    *,
    serial: bool,
) -> None:
    layout, to = source.layout, target.layout
    if layout.numel == 0:
        return
    dim %= len(to.shape)
    shape = _without(layout.shape, dim)
    packed, lines, _, starts = strided_of(
        shape,
        (shape, _without(to.strides, dim)),
        (shape, _without(of_ids, dim)),
        (shape, _without(layout.strides, dim)),
    )
    count, size = layout.shape[dim], target.dtype.block_bytes
    blocks = blocks_for(lines if serial else lines * count, 1)
    strides = to.strides[dim], of_ids[dim], layout.strides[dim]
    for first, second, third in starts:
        kernel(
            target.device,
            blocks,
            pointer(target) + first * size,
            pointer(ids) + second * ids.dtype.block_bytes,
            pointer(source) + third * size,
            lines,
            count,
            to.shape[dim],
            *strides,
            ID_KINDS[ids.dtype],
            int(serial),
            packed,
        )


def _without(values: Shape, dim: int) -> Shape:
    return values[:dim] + values[dim + 1 :]


OPS: Final = [
    implementation(
        "embedding", embedding, {"ids": tuple(ID_KINDS), "table": dtypes.PLAIN}, in_place=False
    ),
    implementation(
        "index_select", index_select, {"x": dtypes.PLAIN, "ids": tuple(ID_KINDS)}, in_place=False
    ),
    implementation("gather", gather, {"x": dtypes.PLAIN, "ids": tuple(ID_KINDS)}, in_place=False),
    *(
        implementation(
            op.__name__, op, {"target": dtypes.PLAIN, "ids": tuple(ID_KINDS)}, in_place=False
        )
        for op in (scatter, scatter_add, index_add)
    ),
]
