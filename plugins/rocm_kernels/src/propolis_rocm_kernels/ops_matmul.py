"""Products of plain matrices."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import cast

from propolis import Priority
from propolis import Tensor
from propolis import dtypes
from propolis.errors import OutOfMemoryError
from propolis.layout import Layout
from propolis_rocm_hip.space import Spare
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._product import ROWS
from propolis_rocm_kernels._product import Kernels
from propolis_rocm_kernels._product import Plan
from propolis_rocm_kernels._product import in_packs
from propolis_rocm_kernels._product import launch_rows
from propolis_rocm_kernels._product import launch_tiles
from propolis_rocm_kernels._product import plan
from propolis_rocm_kernels._product import rows_for
from propolis_rocm_kernels.ops_fill import copy
from propolis_rocm_kernels.ops_matmul_matrix import MATRIX
from propolis_rocm_kernels.ops_matmul_matrix import SIDES
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions
from propolis_rocm_kernels.ops_matmul_matrix import launch_matrix
from propolis_rocm_kernels.ops_matmul_matrix import parts_bytes


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis import OpImpl
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("matmul")

_WORTH: Final = 32
"""Columns of a product from which on it pays to turn the first operand."""

_MULTIPLIED: Final = dtypes.FLOATS | {dtypes.i8}
_ARGUMENTS: Final = "PPPP" + 10 * "q"
_LARGE: Final = dict.fromkeys((dtypes.f32, dtypes.f16, dtypes.bf16), (64, 128))
_KERNELS: Final = {
    d: Kernels(
        {s: MODULE.kernel(f"tile{s}_{d.name}", f"{_ARGUMENTS}2") for s in _LARGE.get(d, (64,))},
        {m: MODULE.kernel(f"rows{m}_{d.name}", f"{_ARGUMENTS}q2") for m in ROWS},
    )
    for d in _MULTIPLIED
}


def _matmul(out: Tensor, a: Tensor, b: Tensor, /, side: int | None = None) -> None:
    *batch, m, n = out.shape
    k = a.shape[-1]
    *a_lead, a_step = a.layout.broadcast_to((*batch, m, k)).strides
    *b_lead, b_step, b_row = b.layout.broadcast_to((*batch, k, n)).strides
    _product(out, a, b, None, (*a_lead, a_step), (*b_lead, 0), (b_row, b_step), side)


def _linear(
    out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, side: int | None = None
) -> None:
    _product(out, x, w, bias, x.strides, (0,) * (len(x.shape) - 1), w.strides, side)


def matmul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a @ b``; operands of any strides, batches broadcast."""
    _in_rows(_matmul, out, a, b)


def linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """``x @ w.T + bias``; the bias joins before the sum is rounded."""
    _in_rows(_linear, out, x, w, bias)


class Turned(Spare):
    """Where the rows of an operand lie that has them as columns."""

    holds = "rows of operands"


def _in_rows(run: Callable[..., None], out: Tensor, a: Tensor, *rest: Any) -> None:
    """Queue ``run``, with a copy of the first operand where matrix instructions want one."""
    if not (nbytes := _turned_bytes(a, out.shape[-1])):
        run(out, a, *rest)
        return
    device = cast("RocmDevice", a.device)
    with device.context.lock:
        try:
            memory = device.keep(Turned).storage(device, nbytes)
        except OutOfMemoryError:
            run(out, a, *rest)  # without matrix instructions
            return
        rows = Tensor(memory, Layout.contiguous(a.shape), a.dtype, device)
        copy(rows, a)
        run(out, rows, *rest)


def _turned_bytes(a: Tensor, n: int) -> int:
    """Of a copy of the first operand; 0 where it is taken as it lies."""
    if a.strides[-1] == 1 or a.dtype not in MATRIX or a.shape[-1] % RUN or n < _WORTH:
        return 0
    if rows_for(math.prod(a.shape[:-1])):
        return 0
    arch = cast("RocmDevice", a.device).properties.arch
    return a.nbytes if has_instructions(arch, a.dtype) else 0


def _by_tiles_of(side: int) -> Iterator[OpImpl]:
    """The same in tiles of so many rows, which are for measuring to choose."""

    def matmul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
        _in_rows(_matmul, out, a, b, side)

    def linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
        _in_rows(_linear, out, x, w, bias, side)

    for fn, supports in ((matmul, _matmul_in_tiles), (linear, _linear_in_tiles)):
        yield implementation(
            fn.__name__,
            fn,
            MATRIX,
            in_place=False,
            workspace=partial(_WORKSPACE[fn.__name__], side=side),
            variant=f"tile{side}",
            priority=Priority.GENERIC - 1,
            supports=supports,
            notes=f"in tiles of {side} rows; `propolis tune` finds out where that is faster",
        )


def _matmul_in_tiles(a: Tensor, b: Tensor, /) -> str | None:
    """None, or why not."""
    del b
    return _refused(a, a.shape[-2])


def _linear_in_tiles(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    """None, or why not."""
    del w, bias
    return _refused(x, math.prod(x.shape[:-1]))


def _memory_of_matmul(a: Tensor, b: Tensor, /, *, side: int | None = None) -> int:
    return _memory(a, math.prod(a.shape[:-1]), b.shape[-1], side)


def _memory_of_linear(
    x: Tensor, w: Tensor, /, bias: Tensor | None = None, *, side: int | None = None
) -> int:
    del bias
    return _memory(x, math.prod(x.shape[:-1]), w.shape[0], side)


_WORKSPACE: Final = {"matmul": _memory_of_matmul, "linear": _memory_of_linear}


def _memory(a: Tensor, m: int, n: int, side: int | None) -> int:
    """Of sums of parts, which only a product of one matrix with another has, and of turned rows."""
    if a.dtype not in MATRIX:
        return 0
    return parts_bytes(a.device, m, n, a.shape[-1], side) + space_bytes(_turned_bytes(a, n))


def _refused(a: Tensor, rows: int) -> str | None:
    arch = cast("RocmDevice", a.device).properties.arch
    if not has_instructions(arch, a.dtype):
        return f"{arch} has no matrix instructions that take all numbers of {a.dtype}"
    return f"{rows} rows go one by one" if rows_for(rows) else None


def _product(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    a_strides: Shape,
    b_lead: Shape,
    b_strides: Shape,
    side: int | None = None,
) -> None:
    """Of ``a`` (leading dimensions, k) and ``b``, seen as (leading dimensions, n, k)."""
    if out.numel == 0:
        return
    *lead, n = out.shape
    depth = a.shape[-1]
    given = plan(tuple(lead), a_strides[:-1], b_lead)
    # Of one element, the distance to the next is what suits.
    a_step, (b_row, b_step) = a_strides[-1], b_strides
    if depth <= 1:
        a_step = b_step = 1
    if n == 1:
        b_row = 0
    dtype, device = a.dtype, out.device
    size, of_out = dtype.block_bytes, out.dtype.block_bytes
    at, b_at, out_at = pointer(a), pointer(b), pointer(out)
    strides = (
        given.m,
        n,
        depth,
        given.row,
        a_step,
        b_row,
        b_step,
        0,
        0 if bias is None else bias.strides[0],
    )
    most = rows_for(given.m)
    in_runs = (
        a_step == b_step == 1
        and depth % RUN == 0
        and in_packs(at, dtype, given.step)
        and in_packs(b_at, dtype, b_row)
        and in_packs(b_at, dtype, given.b_step)
    )
    bias_at = 0 if bias is None else pointer(bias)
    for i, (a_start, b_start) in enumerate(given.batches.starts):
        start = out_at + i * given.batches.numel * given.m * n * of_out
        places = (start, at + a_start * size, b_at + b_start * size, bias_at)
        if most and in_runs:
            values = (*places, *strides)
            launch_rows(_KERNELS[dtype].rows[most], device, most, given, n, depth, values)
        else:
            _launch_tiles(device, dtype, given, places, strides, side=side)


def _launch_tiles(
    device: Any,
    dtype: DType,
    given: Plan,
    places: tuple[int, int, int, int],
    strides: Shape,
    **rest: Any,
) -> None:
    """On matrix instructions where these fit; ``strides`` begin with m, n and depth."""
    if dtype not in MATRIX or not launch_matrix(device, dtype, given, places, strides, **rest):
        values = (*places, *strides)
        launch_tiles(_KERNELS[dtype].tiles, device, given, strides[1], values)


def over_channels(
    out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, x_step: int, w_strides: Shape
) -> None:
    """
    Each image's channels mixed by one matrix; the bias joins before the sum is rounded.

    Args:
        out: (images, channels out, ...), contiguous, not empty.
        x: (images, channels, ...).
        w: the matrix.
        bias: (channels out,), or None.
        x_step: from an element of a channel to the next, in ``x``.
        w_strides: of the matrix, (channels out, channels).
    """
    images, n, *sizes = out.shape
    positions, depth = math.prod(sizes), x.shape[1]
    row, step = w_strides
    batches = strided_of((images,), ((images,), (0,)), ((images,), x.strides[:1]))
    given = Plan(n, row, batches, row, x.strides[0] if images > 1 else 0)
    places = (pointer(out), pointer(w), pointer(x), 0 if bias is None else pointer(bias))
    strides = (
        *(n, positions, depth, row if n > 1 else 0, step if depth > 1 else 1),
        *(x_step if positions > 1 else 0, x.strides[1] if depth > 1 else 1),
        *(0 if bias is None else bias.strides[0], 0),
    )
    _launch_tiles(out.device, out.dtype, given, places, strides, whole=True)


OPS: Final = [
    *(
        implementation(
            fn.__name__, fn, _MULTIPLIED, in_place=False, workspace=_WORKSPACE[fn.__name__]
        )
        for fn in (matmul, linear)
    ),
    *(impl for side in SIDES for impl in _by_tiles_of(side)),
]
