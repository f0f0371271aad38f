"""
Rows and elements by index.

Indices are of any integer dtype but i8, which names no more than 127 rows.  One
that is the largest value of its dtype is *masked*: it reads 0, and writes
nothing (padding of ragged batches).  Any other index outside the dimension is an
error on the CPU; a GPU does not look, and memory outside is never touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.layout import normalize_dim
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from propolis.tensor import Tensor


INDEX_DTYPES = frozenset({dtypes.u8, dtypes.u32, dtypes.i16, dtypes.i32, dtypes.i64})
_EXACT = dict.fromkeys(dtypes.ALL, EXACT)


@op({"ids": INDEX_DTYPES, "table": frozenset(dtypes.ALL)}, tolerance=_EXACT)
def embedding(ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> Meta:
    """
    ``table[ids]``: one row for each id; rows of a block format are dequantised.

    Args:
        ids: any shape, an integer dtype but i8, each in [0, rows) or masked.
        table: (rows, width), any dtype.
        dtype: of the output; None means the table's own, and f32 where the table
            is in a block format.  Another float dtype rounds.

    Returns:
        Shape of ``ids`` + (width,).

    Raises:
        DTypeError: the output dtype is not a float where it differs from the table's.
        ShapeError: the table is not of rank 2.
        OpError: an id is outside the table.
    """
    expect("embedding", len(table.shape) == 2, "table is (rows, width)", table=table)
    own = dtypes.f32 if table.dtype.is_block else table.dtype
    wanted = dtype or own
    if wanted is not own and not (wanted in FLOATS and own in FLOATS):
        msg = (
            f"embedding: dtype {wanted!r} from a table of {table.dtype}; supported: float dtypes, "
            f"as dtypes.f32"
        )
        raise DTypeError(msg)
    return (*ids.shape, table.shape[1]), wanted


@op({"x": PLAIN, "ids": INDEX_DTYPES}, tolerance=_EXACT)
def index_select(x: Tensor, ids: Tensor, /, dim: int = 0) -> Meta:
    """
    The slices of one dimension that ``ids`` names, in that order.

    Args:
        x: rank 1 or more, any plain dtype.
        ids: (n,), an integer dtype but i8, each in [0, size of dim) or masked.
        dim: the dimension; negative counts from the end.

    Returns:
        Shape of ``x`` with ``n`` in place of the dimension's size, dtype of ``x``.

    Raises:
        ShapeError: ids is not of rank 1, or there is no such dimension.
        OpError: an id is outside the dimension.
    """
    dim = normalize_dim("index_select", dim, len(x.shape))
    expect("index_select", len(ids.shape) == 1, "ids is of rank 1", x=x, ids=ids)
    return (*x.shape[:dim], ids.shape[0], *x.shape[dim + 1 :]), x.dtype


@op({"x": PLAIN, "ids": INDEX_DTYPES}, tolerance=_EXACT)
def gather(x: Tensor, ids: Tensor, /, dim: int = -1) -> Meta:
    """
    ``out[i, j, k] = x[ids[i, j, k], j, k]`` for dim 0, and so on for others.

    Args:
        x: rank 1 or more, any plain dtype.
        ids: same rank, no larger than ``x`` in the other dimensions; an integer
            dtype but i8, each in [0, size of dim) or masked.
        dim: the dimension that is indexed; negative counts from the end.

    Returns:
        Shape of ``ids``, dtype of ``x``.

    Raises:
        ShapeError: the shapes do not fit together, or there is no such dimension.
        OpError: an id is outside the dimension.
    """
    _check_elementwise_ids("gather", x, ids, dim)
    return ids.shape, x.dtype


@op({"target": PLAIN, "ids": INDEX_DTYPES}, mutates=True, tolerance=_EXACT)
def scatter(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = -1) -> None:
    """
    ``target[ids[i, j, k], j, k] = source[i, j, k]`` for dim 0, in place.

    Where several indices name one element, the last along ``dim`` stays.

    Args:
        target: rank 1 or more, any strides, any plain dtype.
        ids: same rank, no larger than ``target`` in the other dimensions; an integer
            dtype but i8, each in [0, size of dim) or masked.
        source: shape of ``ids``, dtype of ``target``.
        dim: the dimension that is indexed; negative counts from the end.

    Raises:
        DTypeError: target and source differ in dtype.
        ShapeError: the shapes do not fit together, or there is no such dimension.
        OpError: an id is outside the dimension; nothing is written then.
    """
    _check_scatter("scatter", target, ids, source, dim)


@op(
    {"target": PLAIN, "ids": INDEX_DTYPES},
    mutates=True,
    tolerance=ROUNDED,
    magnitude=of_absolutes,
)
def scatter_add(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = -1) -> None:
    """
    ``target[ids[i, j, k], j, k] += source[i, j, k]`` for dim 0, in place.

    Elements that several indices name receive all, in order along ``dim``; f16, bf16
    and f8 are summed in f32 and rounded once.

    Args:
        target: rank 1 or more, any strides, any plain dtype.
        ids: as for ``scatter``.
        source: shape of ``ids``, dtype of ``target``.
        dim: the dimension that is indexed; negative counts from the end.

    Raises:
        DTypeError: target and source differ in dtype.
        ShapeError: the shapes do not fit together, or there is no such dimension.
        OpError: an id is outside the dimension; nothing is written then.
    """
    _check_scatter("scatter_add", target, ids, source, dim)


@op(
    {"target": PLAIN, "ids": INDEX_DTYPES},
    mutates=True,
    tolerance=ROUNDED,
    magnitude=of_absolutes,
)
def index_add(target: Tensor, ids: Tensor, source: Tensor, /, dim: int = 0) -> None:
    """
    Add slices of ``source`` to the slices of ``target`` that ``ids`` names, in place.

    Args:
        target: rank 1 or more, any strides, any plain dtype.
        ids: (n,), an integer dtype but i8, each in [0, size of dim) or masked.
        source: shape of ``target`` with ``n`` in place of the dimension's size.
        dim: the dimension; negative counts from the end.

    Raises:
        DTypeError: target and source differ in dtype.
        ShapeError: the shapes do not fit together, or there is no such dimension.
        OpError: an id is outside the dimension; nothing is written then.
    """
    same_dtype("index_add", target=target, source=source)
    dim = normalize_dim("index_add", dim, len(target.shape))
    wanted = (*target.shape[:dim], *ids.shape, *target.shape[dim + 1 :])
    fits = len(ids.shape) == 1 and source.shape == wanted
    expect(
        "index_add",
        fits,
        f"ids is (n,) and source has n slices along dimension {dim}",
        target=target,
        ids=ids,
        source=source,
    )


def _check_elementwise_ids(name: str, x: Tensor, ids: Tensor, dim: int) -> None:
    dim = normalize_dim(name, dim, len(x.shape))
    fits = len(x.shape) == len(ids.shape) and all(
        m <= n for i, (m, n) in enumerate(zip(ids.shape, x.shape, strict=True)) if i != dim
    )
    rule = f"ids has the same rank and is no larger outside dimension {dim}"
    expect(name, fits, rule, x=x, ids=ids)


def _check_scatter(name: str, target: Tensor, ids: Tensor, source: Tensor, dim: int) -> None:
    same_dtype(name, target=target, source=source)
    _check_elementwise_ids(name, target, ids, dim)
    expect(name, ids.shape == source.shape, "ids and source agree", ids=ids, source=source)
