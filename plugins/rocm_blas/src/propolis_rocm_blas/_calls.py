"""A planned product as calls of a library: over tensors, and over columns of an output."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from propolis_rocm_blas.multiplier import ONES
from propolis_rocm_blas.multiplier import Matrix
from propolis_rocm_blas.multiplier import Product


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Tensor
    from propolis_rocm_blas._plan import Plan
    from propolis_rocm_blas.multiplier import Multiplier


@lru_cache(maxsize=4096)
def product_of(dtype: DType, given: Plan, columns: int) -> Product:
    """
    What the calls of a plan ask for, of so many columns of its output.

    Our ``out = a @ b`` is ``out' = b' @ a'`` of columns, whose rows are ours: so the second operand
    comes first, transposed where ours is not.
    """
    out_step, a_step, b_step = given.steps
    return Product(
        dtype,
        (columns, given.m, given.k),
        Matrix(given.b.deep, given.b.leading, b_step),
        Matrix(not given.a.deep, given.a.leading, a_step),
        Matrix(transposed=False, leading=given.n, step=out_step),
        given.batches,
    )


def run(
    by: Multiplier,
    out: Tensor,
    a: Tensor,
    b: Tensor,
    given: Plan,
    *,
    onto: bool = False,
    columns: range | None = None,
) -> None:
    """
    Queue the calls of a plan.

    Args:
        by: the library.
        out: the output.
        a: the first operand.
        b: the second, or those of its columns.
        given: the plan of all columns.
        onto: add to what is in the output.
        columns: which ones of the output are computed; None for all.
    """
    dtype, size = out.dtype, out.dtype.block_bytes
    columns = range(given.n) if columns is None else columns
    product = product_of(dtype, given, len(columns))
    a_at, b_at, out_at = pointer(a), pointer(b), pointer(out) + columns.start * size
    for start, a_start, b_start in given.starts:
        by.multiply(
            product,
            b_at + b_start * size,
            a_at + a_start * size,
            out_at + start * size,
            onto=onto,
        )


def repeat(by: Multiplier, out: Tensor, bias: Tensor) -> None:
    """Write the bias into every row: times 1 and plus 0 it is what it was."""
    n, dtype = out.shape[-1], out.dtype
    first, at = pointer(bias), pointer(out)
    for product, start in repetition(dtype, out.numel // n, n, bias.strides[0]):
        by.multiply(product, first, by.ones[dtype], at + start * dtype.block_bytes)


@lru_cache(maxsize=4096)
def repetition(dtype: DType, rows: int, n: int, stride: int) -> tuple[tuple[Product, int], ...]:
    """The products that write a bias into rows of ``n``, and the element where each begins."""
    lies = Matrix(transposed=False, leading=max(stride, n))
    if stride != 1 and n > 1:  # a row, whose elements lie a leading dimension apart
        lies = Matrix(transposed=True, leading=stride)
    ones = Matrix(transposed=False, leading=1)
    whole, rest = divmod(rows, ONES)
    found = []
    if whole:
        out = Matrix(transposed=False, leading=n, step=ONES * n)
        found.append((Product(dtype, (n, ONES, 1), lies, ones, out, whole), 0))
    if rest:
        out = Matrix(transposed=False, leading=n)
        found.append((Product(dtype, (n, rest, 1), lies, ones, out), whole * ONES * n))
    return tuple(found)


def pointer(tensor: Tensor) -> int:
    """The device address of the first element."""
    return tensor.storage.ptr + tensor.layout.offset * tensor.dtype.block_bytes


__all__ = ["pointer", "product_of", "repeat", "repetition", "run"]
