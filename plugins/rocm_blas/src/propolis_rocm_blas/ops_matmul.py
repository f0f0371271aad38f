"""Products of plain matrices."""

from __future__ import annotations

import math
from functools import lru_cache
from functools import partial
from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import OpImpl
from propolis import Priority
from propolis_rocm_blas._ffi import PLAIN
from propolis_rocm_blas._ffi import TRANSPOSED
from propolis_rocm_blas._plan import Plan
from propolis_rocm_blas._plan import plan
from propolis_rocm_blas.handle import EXTRA_BYTES
from propolis_rocm_blas.handle import NUMBERS
from propolis_rocm_blas.handle import ONES
from propolis_rocm_blas.handle import Handle
from propolis_rocm_blas.handle import Operand
from propolis_rocm_blas.handle import workspace_for
from propolis_rocm_blas.probe import unusable


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Iterator

    from propolis import Device
    from propolis import DType
    from propolis import Tensor
    from propolis.layout import Layout
    from propolis.layout import Shape
    from propolis_rocm_hip.device import RocmDevice

FEW_ROWS: Final = 8
"""
Up to so many rows of ``a`` mat-vec kernels, which read each weight once, go first.

Theirs is the decode step of a language model, bound by memory.  On an NVIDIA GPU rocm_kernels'
take 0.8 (f32) to 1.2 (f16) times the time of cuBLAS's (docs/benchmarks/h200.md); rocBLAS's are not
known, and releases that hand such products to its gemv functions may round each term to 16 bits.
"""

FLUSHES: Final = frozenset({"gfx90a"})
"""Whose matrix instructions take denormal f16 and bf16 for 0."""


def matmul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a @ b``; one of the two last strides of either is 1."""
    found = _of_matmul(a.layout, b.layout)
    if isinstance(found, Plan):
        _run(_handle(out), out, a, b, found)


def linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """
    ``x @ w.T + bias``; the bias joins before the sum is rounded.

    It is written into the output first, by a product with ones, and the other product is added
    onto it: no kernel of ours is needed, and nothing is rounded in between.
    """
    found = _of_linear(x.layout, w.layout)
    if not isinstance(found, Plan):
        return
    handle = _handle(out)
    if bias is not None:
        _repeat(handle, out, bias)
    _run(handle, out, x, w, found, onto=bias is not None)


# Tensors of one shape share a layout, and views keep theirs.
@lru_cache(maxsize=4096)
def _of_matmul(a: Layout, b: Layout) -> Plan | str | None:
    """How, or why not; None where there is nothing to do."""
    (*a_batch, m, k), n = a.shape, b.shape[-1]
    batch = _broadcast(tuple(a_batch), b.shape[:-2])
    if math.prod(batch) * m * n == 0:
        return None
    *b_lead, b_step, b_row = b.broadcast_to((*batch, k, n)).strides
    a_strides = a.broadcast_to((*batch, m, k)).strides
    return plan((*batch, m), n, k, a_strides, (*b_lead, 0), (b_row, b_step))


@lru_cache(maxsize=4096)
def _of_linear(x: Layout, w: Layout) -> Plan | str | None:
    (*lead, k), n = x.shape, w.shape[0]
    if math.prod(lead) * n == 0:
        return None
    row, step = w.strides
    return plan(tuple(lead), n, k, x.strides, (0,) * len(lead), (row, step))


def _broadcast(a: Shape, b: Shape) -> Shape:
    """The common shape of batches that are known to fit together."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _handle(out: Tensor) -> Handle:
    device = cast("RocmDevice", out.device)
    return device.keep(Handle)


def _run(
    handle: Handle, out: Tensor, a: Tensor, b: Tensor, given: Plan, *, onto: bool = False
) -> None:
    dtype, size = out.dtype, out.dtype.block_bytes
    out_step, a_step, b_step = given.steps
    for start, a_start, b_start in given.starts:
        # Of columns: their rows are our second operand's, so it is transposed where ours is not.
        first = Operand(
            _pointer(b) + b_start * size,
            TRANSPOSED if given.b.deep else PLAIN,
            given.b.leading,
            b_step,
        )
        second = Operand(
            _pointer(a) + a_start * size,
            PLAIN if given.a.deep else TRANSPOSED,
            given.a.leading,
            a_step,
        )
        handle.multiply(
            dtype,
            (given.n, given.m, given.k),
            first,
            second,
            _pointer(out) + start * size,
            out_step,
            given.batches,
            onto=onto,
        )


def _repeat(handle: Handle, out: Tensor, bias: Tensor) -> None:
    """Write the bias into every row: times 1 and plus 0 it is what it was."""
    n, dtype = out.shape[-1], out.dtype
    rows = out.numel // n
    first = Operand(_pointer(bias), PLAIN, max(bias.strides[0], n), 0)
    if bias.strides[0] != 1 and n > 1:  # a row, whose elements lie a leading dimension apart
        first = Operand(_pointer(bias), TRANSPOSED, bias.strides[0], 0)
    second = Operand(handle.ones[dtype], PLAIN, 1, 0)
    whole, rest = divmod(rows, ONES)
    at = _pointer(out)
    if whole:
        handle.multiply(dtype, (n, ONES, 1), first, second, at, ONES * n, whole)
    if rest:
        at += whole * ONES * n * dtype.block_bytes
        handle.multiply(dtype, (n, rest, 1), first, second, at)


def _pointer(tensor: Tensor) -> int:
    """The device address of the first element."""
    return tensor.storage.ptr + tensor.layout.offset * tensor.dtype.block_bytes


# -- what is offered -------------------------------------------------------------------


def _takes_matmul(few: bool, a: Tensor, b: Tensor, /) -> str | None:
    return _refusal(_of_matmul(a.layout, b.layout), few=few)


def _takes_linear(few: bool, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    if bias is not None and bias.strides[0] == 0 and bias.numel > 1:
        return "the bias repeats one element, and BLAS has no stride of 0"
    return _refusal(_of_linear(x.layout, w.layout), few=few)


def _refusal(found: Plan | str | None, *, few: bool) -> str | None:
    if isinstance(found, Plan):
        if few or found.m > FEW_ROWS:
            return None
        return (
            f"{found.m} rows are for kernels that read each weight once (over {FEW_ROWS} are not)"
        )
    return found


_OPS: Final[tuple[tuple[str, Callable[..., None], Callable[..., str | None]], ...]] = (
    ("matmul", matmul, _takes_matmul),
    ("linear", linear, _takes_linear),
)


def implementations(device: Device) -> Iterator[OpImpl]:
    """
    What the plugin offers a device.

    Each op twice: before the kernels, and, for few rows, behind them, where it serves those who
    have no kernels installed.

    Args:
        device: an AMD GPU, or one that is described.
    """
    arch = device.properties.arch
    narrow = [d for d in NUMBERS if d.block_bytes == 2] if arch in FLUSHES else []
    wide = [d for d in NUMBERS if d not in narrow]
    why_not = unusable(device)
    for name, fn, takes in _OPS:
        for few in (False,) if why_not else (False, True):
            for kinds, flushes in ((wide, False), (narrow, True)):
                if kinds:
                    yield _offer(name, fn, partial(takes, few), kinds, why_not, arch, few, flushes)


def _offer(
    name: str,
    fn: Callable[..., None],
    takes: Callable[..., str | None],
    kinds: Collection[DType],
    why_not: str,
    arch: str,
    few: bool,
    flushes: bool,
) -> OpImpl:
    words = ["few-rows"] * few + ["16-bit"] * flushes
    notes = "by rocBLAS, sums in f32 or wider"
    if flushes:
        notes += f"; {arch}'s matrix instructions take denormal numbers for 0"
    return OpImpl(
        op=name,
        fn=fn,
        device="rocm",
        dtypes=kinds,
        unusable=why_not,
        priority=Priority.GENERIC - 1 if few else Priority.VENDOR,
        variant="-".join(words),
        supports=takes,
        capture_safe=True,
        exact=not flushes,
        workspace=workspace_for(arch) + EXTRA_BYTES,
        notes=notes,
    )


__all__ = ["FEW_ROWS", "implementations", "linear", "matmul"]
