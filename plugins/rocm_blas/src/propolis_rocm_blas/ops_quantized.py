"""
Products with weights in the GGUF block formats, of many rows: dequantised first, tile by tile.

Who dequantises is whoever serves core's ``dequantize`` on the device: this plugin has no kernels.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import cast

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import Call
from propolis.dispatch import DispatchTable
from propolis.errors import OutOfMemoryError
from propolis.layout import Layout
from propolis_rocm_blas._calls import run
from propolis_rocm_blas._offers import Family
from propolis_rocm_blas._offers import multiplier
from propolis_rocm_blas._plan import Plan
from propolis_rocm_blas.multiplier import lacking
from propolis_rocm_blas.ops_matmul import of_linear
from propolis_rocm_hip.space import Space
from propolis_rocm_hip.space import space_bytes


if TYPE_CHECKING:
    from propolis import DType
    from propolis_rocm_hip.device import RocmDevice

MANY_ROWS: Final = {dtypes.f32: 32, dtypes.f16: 16, dtypes.bf16: 16}
"""
From so many rows of ``x`` on, weights are dequantised; with fewer, kernels that do so on the way
go first.

Measured on an H200 by benches/gpu_rows.py (docs/benchmarks/h200.md), for Q4_K of 4096 x 4096 and
14336 x 4096: f32 is ahead from 32 rows on, 1.02 to 2.7 times, f16 from 16 rows on, 3 to 19 times.
"""

MANY_ROWS_RADEON: Final = {dtypes.f32: 384, dtypes.f16: 32, dtypes.bf16: 32}
"""
The same for cards of the gfx10 family and later, whose memory is about five times slower.

Dequantising writes each weight and reads it again, about 9 bytes of it in f32 and 5 in 16 bits:
that time, on a Radeon, added to what the products took on the H200.  Nobody has measured it.
"""

TILE_BYTES: Final = 64 << 20
"""
The most that is dequantised at once.

A larger weight is done in tiles of rows: products stay large enough to fill a card, and a tile is
still in the last cache (96 MiB of gfx1100, 256 of gfx942) when it is read again.
"""


class Weights(Space):
    """
    Where a tile lies: memory apart from :class:`Space`, which who dequantises may work in.

    Like it, it grows with what was asked for, and never while a captured step is replayed.
    """


def qmatmul(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of weights rounded to the dtype of ``x``."""
    given = _of(x.layout, w.shape)
    if not isinstance(given, Plan):
        return
    by, device = multiplier(out), cast("RocmDevice", out.device)
    rows = _rows(given.n, given.k, x.dtype)
    try:
        memory = device.keep(Weights).storage(device, rows * given.k * x.dtype.block_bytes)
    except OutOfMemoryError as exc:
        raise lacking(device, "dequantised weights", exc) from exc
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


def _rows(n: int, k: int, dtype: DType) -> int:
    """
    Of a weight, in a tile: tiles are alike.

    >>> _rows(4096, 4096, dtypes.f16), _rows(128256, 4096, dtypes.f16)
    (4096, 8016)
    """
    tiles = math.ceil(n / max(TILE_BYTES // (k * dtype.block_bytes), 1))
    return math.ceil(n / tiles)


def _memory(x: Tensor, w: Tensor) -> int:
    n, k = w.shape
    size = x.dtype.block_bytes
    return space_bytes(_rows(n, k, x.dtype) * k * size) if n * k else 0


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


OPS: Final = (
    Family(
        "qmatmul",
        qmatmul,
        _takes,
        kinds=tuple(MANY_ROWS),
        weights=sorted(dtypes.BLOCKS, key=str),
        rounds=True,
        memory=_memory,
        notes="weights dequantised in tiles",
    ),
)

__all__ = ["MANY_ROWS", "MANY_ROWS_RADEON", "OPS", "TILE_BYTES", "Weights", "many_rows", "qmatmul"]
