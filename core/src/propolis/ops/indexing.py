"""Rows and elements by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.ops._infer import expect
from propolis.ops._spec import EXACT
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


INDEX_DTYPES = frozenset({dtypes.u32, dtypes.i32, dtypes.i64})


@op(
    {"ids": INDEX_DTYPES, "table": frozenset(dtypes.ALL)},
    tolerance=dict.fromkeys(dtypes.ALL, EXACT),
)
def embedding(ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> Meta:
    """
    ``table[ids]``: one row for each id; rows of a block format are dequantised.

    Args:
        ids: any shape, u32, i32 or i64, each in [0, rows).
        table: (rows, width), any dtype.
        dtype: of the output; None means the table's own, and f32 where the table
            is in a block format.  Another float dtype rounds.

    Returns:
        Shape of ``ids`` + (width,).

    Raises:
        DTypeError: the output dtype is not a float where it differs from the table's.
        ShapeError: the table is not of rank 2.
        OpError: an id is outside the table (CPU, and GPU in debug mode).
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
