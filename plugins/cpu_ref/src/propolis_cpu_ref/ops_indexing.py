"""embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis import dtypes
from propolis_cpu_ref._blocks import dequantize_blocks
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._indices import check_range
from propolis_cpu_ref.ops_cast import convert


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Tensor


@ieee
def embedding(out: Tensor, ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> None:
    """Gather rows; rows of a block format are dequantised, only those."""
    del dtype  # out has it
    check_range("embedding", "id", ids.array, table.shape[0], "the table")
    rows = np.take(table.array, ids.array, axis=0)
    source = table.dtype
    if source.is_block:
        values = np.empty(out.numel, np.float32)
        dequantize_blocks(rows.reshape(-1), source, values)
        rows, source = values.reshape(out.shape), dtypes.f32
    out.array[...] = convert(rows, source, out.dtype)


OPS = [
    OpImpl(
        op="embedding",
        fn=embedding,
        dtypes={"table": frozenset(dtypes.ALL)},
        notes="dequantises only the rows it reads",
    ),
]
