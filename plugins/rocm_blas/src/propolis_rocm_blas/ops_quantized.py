"""
Products with weights in the GGUF block formats, of many rows: dequantised first, tile by tile.

Who dequantises is whoever serves core's ``dequantize`` on the device: this plugin has no kernels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import Call
from propolis.dispatch import DispatchTable
from propolis.layout import Layout
from propolis_rocm_blas._calls import product_of
from propolis_rocm_blas._calls import run
from propolis_rocm_blas._offers import Family
from propolis_rocm_blas._offers import multiplier
from propolis_rocm_blas._plan import Plan
from propolis_rocm_blas.ops_matmul import of_linear
from propolis_rocm_hip.space import Weights
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_hip.space import tile_rows


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import DType
    from propolis_rocm_blas.multiplier import Product
    from propolis_rocm_hip.device import RocmDevice

MANY_ROWS: Final = {dtypes.f32: 32, dtypes.f16: 16, dtypes.bf16: 16}
"""
From so many rows of ``x`` on, weights are dequantised; with fewer, kernels that do so on the way
go first.

Measured on an H200 by benches/gpu_rows.py (docs/benchmarks/h200.md at abbbd90), for Q4_K of 4096 x
4096 and 14336 x 4096: f32 is ahead from 32 rows on, 1.02 to 2.7 times, f16 from 16 rows on, 3 to
19 times.
"""

MANY_ROWS_RADEON: Final = {dtypes.f32: 384, dtypes.f16: 32, dtypes.bf16: 32}
"""
The same for cards of the gfx10 family and later, whose memory is about five times slower.

Dequantising writes each weight and reads it again, about 9 bytes of it in f32 and 5 in 16 bits:
that time, on a Radeon, added to what the products took on the H200.  Nobody has measured it.
"""


def qmatmul(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of weights rounded to the dtype of ``x``."""
    given = _of(x.layout, w.shape)
    if not isinstance(given, Plan):
        return
    by, device = multiplier(out), cast("RocmDevice", out.device)
    rows = tile_rows(given.n, given.k, x.dtype.block_bytes)
    with device.keep(Weights).lent(device, rows * given.k * x.dtype.block_bytes) as memory:
        for first in range(0, given.n, rows):
            columns = range(first, min(first + rows, given.n))
            tile = Tensor(memory, Layout.contiguous((len(columns), given.k)), x.dtype, device)
            ops.dequantize.into(tile, w.narrow(0, first, len(columns)), dtype=x.dtype)
            run(by, out, x, tile, given, columns=columns)


def many_rows(arch: str) -> dict[DType, int]:
    """
    From how many rows on weights are dequantised on an architecture, by the dtype of ``x``.

    >>> many_rows("gfx942")[dtypes.f32], many_rows("gfx1100")[dtypes.f32]
    (32, 384)
    """
    return MANY_ROWS_RADEON if arch.startswith("gfx1") else MANY_ROWS


@lru_cache(maxsize=4096)
def _of(x: Layout, w: tuple[int, int]) -> Plan | str | None:
    return of_linear(x, Layout.contiguous(w))


def _memory(x: Tensor, w: Tensor) -> int:
    n, k = w.shape
    size = x.dtype.block_bytes
    return space_bytes(tile_rows(n, k, size) * k * size) if n * k else 0


def _takes(few: bool, x: Tensor, w: Tensor, /) -> str | None:
    given = _of(x.layout, w.shape)
    if not isinstance(given, Plan):
        return given
    least = many_rows(cast("RocmDevice", x.device).properties.arch)[x.dtype]
    if not few and given.m < least:
        return (
            f"{given.m} rows are for kernels that dequantise on the way (in {x.dtype}, {least} and "
            "more are not)"
        )
    wanted = Call(ops.dequantize, w.dtype, (), (w,), {"dtype": x.dtype})
    server = DispatchTable.of(x.device).server(wanted)
    if server.impl is None or not server.impl.capture_safe:
        return f"nobody dequantises {w.dtype} on {x.device.id} by queueing alone: {server} does"
    return None


def _products(x: Tensor, w: Tensor) -> Iterator[Product]:
    given = _of(x.layout, w.shape)
    if isinstance(given, Plan):
        rows = tile_rows(given.n, given.k, x.dtype.block_bytes)
        for columns in {min(rows, given.n), given.n % rows or rows}:
            yield product_of(x.dtype, given, columns)


OPS: Final = (
    Family(
        "qmatmul",
        qmatmul,
        _takes,
        _products,
        kinds=tuple(MANY_ROWS),
        weights=sorted(dtypes.BLOCKS, key=str),
        rounds=True,
        memory=_memory,
        notes="weights dequantised in tiles",
    ),
)

__all__ = ["MANY_ROWS", "MANY_ROWS_RADEON", "OPS", "many_rows", "qmatmul"]
