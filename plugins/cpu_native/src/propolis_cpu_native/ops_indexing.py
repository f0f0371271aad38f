"""Rows and elements by index, as of embeddings and of the likeliest token."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import row_step
from propolis_cpu_native._implementation import strided_implementation
from propolis_cpu_native._native import FLOATS
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native
from propolis_cpu_native.ops_quantized import FORMATS
from propolis_cpu_native.ops_quantized import prepare


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Tensor

_IDS: Final = frozenset({dtypes.i32, dtypes.i64})


def embedding(out: Tensor, ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> None:
    """``table[ids]``; rows of a block format are dequantised, only those."""
    del dtype  # out has it
    tiles = table.prepared.get(prepare)
    native().embedding(
        out.array,
        ids.array,
        ids.dtype is dtypes.i64,
        table.array if tiles is None else tiles,
        table.dtype.name if table.dtype.is_block else KINDS[table.dtype],
        *table.shape,
        KINDS[out.dtype],
        out.device.threads,
        tiles is not None,
    )


def _rounds_to_known(ids: Tensor, table: Tensor, /, dtype: DType | None = None) -> str | None:
    """None, or why not: what comes out is no float that the kernels know."""
    del ids
    wanted = dtype or (dtypes.f32 if table.dtype.is_block else table.dtype)
    return None if wanted in FLOATS else f"no {wanted} comes out"


def gather(out: Tensor, x: Tensor, ids: Tensor, /, dim: int = -1) -> None:
    """Elements of the last dimension by index; masked ones are 0."""
    del dim
    native().gather_rows(
        out.array,
        x.array,
        row_step(x),
        ids.array,
        ids.dtype is dtypes.i64,
        ids.shape[-1],
        x.shape[-1],
        x.dtype.block_bytes,
    )


def _of_rows(x: Tensor, ids: Tensor, /, dim: int = -1) -> str | None:
    """None, or why not: another dimension than the last, or fewer rows than there are."""
    if dim not in {-1, len(x.shape) - 1}:
        return "the last dimension alone"
    if x.shape[:-1] != ids.shape[:-1]:
        return "of every row alone"
    if not ids.layout.is_contiguous:
        return "ids are strided"
    return None if row_step(x) is not None else "rows do not lie one distance apart"


OPS: Final = [
    implementation(
        "embedding",
        embedding,
        dtypes={"ids": _IDS, "table": FLOATS},
        supports=_rounds_to_known,
    ),
    implementation(
        "embedding",
        embedding,
        dtypes={"ids": _IDS, "table": FORMATS},
        variant="blocks",
        supports=_rounds_to_known,
        prepare=prepare,
        notes="from a table as products have it repacked, where it is one of them too",
    ),
    strided_implementation("gather", gather, dtypes={"x": PLAIN, "ids": _IDS}, supports=_of_rows),
]
