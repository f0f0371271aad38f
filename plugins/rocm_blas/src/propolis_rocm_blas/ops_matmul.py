"""Products of plain matrices."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_blas._calls import product_of
from propolis_rocm_blas._calls import repeat
from propolis_rocm_blas._calls import repetition
from propolis_rocm_blas._calls import run
from propolis_rocm_blas._offers import Family
from propolis_rocm_blas._offers import multiplier
from propolis_rocm_blas._plan import Plan
from propolis_rocm_blas._plan import plan


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Tensor
    from propolis.layout import Layout
    from propolis.layout import Shape
    from propolis_rocm_blas.multiplier import Multiplier
    from propolis_rocm_blas.multiplier import Product

FEW_ROWS: Final = 8
"""
Up to so many rows of ``a`` mat-vec kernels, which read each weight once, go first.

Theirs is the decode step of a language model, bound by memory.  On an NVIDIA GPU rocm_kernels'
take 0.8 (f32) to 1.2 (f16) times the time of cuBLAS's (docs/benchmarks/h200.md); rocBLAS's are not
known, and releases that hand such products to its gemv functions may round each term to 16 bits.
"""


def matmul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a @ b``; one of the two last strides of either is 1."""
    matmul_by(multiplier(out), out, a, b)


def matmul_by(by: Multiplier, out: Tensor, a: Tensor, b: Tensor) -> None:
    """The same by a library that is given."""
    found = _of_matmul(a.layout, b.layout)
    if isinstance(found, Plan):
        run(by, out, a, b, found)


def linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """
    ``x @ w.T + bias``; the bias joins before the sum is rounded.

    It is written into the output first, by a product with ones, and the other product is added
    onto it: no kernel of ours is needed, and nothing is rounded in between.
    """
    found = of_linear(x.layout, w.layout)
    if not isinstance(found, Plan):
        return
    by = multiplier(out)
    if bias is not None:
        repeat(by, out, bias)
    run(by, out, x, w, found, onto=bias is not None)


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
def of_linear(x: Layout, w: Layout) -> Plan | str | None:
    """How ``x @ w.T`` is done, or why not; None where there is nothing to do."""
    (*lead, k), n = x.shape, w.shape[0]
    if math.prod(lead) * n == 0:
        return None
    row, step = w.strides
    return plan(tuple(lead), n, k, x.strides, (0,) * len(lead), (row, step), "xw")


def _broadcast(a: Shape, b: Shape) -> Shape:
    """The common shape of batches that are known to fit together."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _takes_matmul(few: bool, a: Tensor, b: Tensor, /) -> str | None:
    return _refusal(_of_matmul(a.layout, b.layout), few=few)


def _takes_linear(few: bool, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    if bias is not None and bias.strides[0] == 0 and bias.numel > 1:
        return "the bias repeats one element, and BLAS has no stride of 0"
    return _refusal(of_linear(x.layout, w.layout), few=few)


def _matmul_products(a: Tensor, b: Tensor) -> Iterator[Product]:
    found = _of_matmul(a.layout, b.layout)
    if isinstance(found, Plan):
        yield product_of(a.dtype, found, found.n)


def _linear_products(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Iterator[Product]:
    found = of_linear(x.layout, w.layout)
    if isinstance(found, Plan):
        yield product_of(x.dtype, found, found.n)
        if bias is not None:
            rows = x.numel // x.shape[-1]
            for product, _ in repetition(x.dtype, rows, found.n, bias.strides[0]):
                yield product


def _refusal(found: Plan | str | None, *, few: bool) -> str | None:
    if isinstance(found, Plan):
        if few or found.m > FEW_ROWS:
            return None
        return (
            f"{found.m} rows are for kernels that read each weight once (over {FEW_ROWS} are not)"
        )
    return found


OPS: Final = (
    Family("matmul", matmul, _takes_matmul, _matmul_products),
    Family("linear", linear, _takes_linear, _linear_products),
)

__all__ = ["FEW_ROWS", "OPS", "linear", "matmul", "matmul_by", "of_linear"]
