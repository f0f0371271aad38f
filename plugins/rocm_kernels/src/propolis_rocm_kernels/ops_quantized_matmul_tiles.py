"""Products of some rows of f32 activations with weights in block formats, in tiles."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple
from typing import cast

from propolis import Priority
from propolis import dtypes
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels import ops_quantized_matmul_few as few
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import GAP
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._product import launch
from propolis_rocm_kernels._product import tiles
from propolis_rocm_kernels.ops_matmul_matrix import LDS
from propolis_rocm_kernels.ops_matmul_matrix import SUM_BYTES
from propolis_rocm_kernels.ops_matmul_matrix import Parts
from propolis_rocm_kernels.ops_matmul_matrix import room
from propolis_rocm_kernels.ops_quantized import rounded_rows


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.dtypes import DType
    from propolis_rocm_hip.device import RocmDevice

MODULE: Final = Module("quantized_matmul_tiles")

_CHUNK: Final = MODULE.constant("CHUNK", 256)
"""Weights of a row that are brought at a time: whole blocks of any format."""

_DEEP: Final = MODULE.constant("DEEP", 128)
"""Activations of a row that are brought at a time."""

_WIDTH: Final = MODULE.constant("TILE_ROWS", 128)
"""Rows of weights of a tile."""

_ROWS: Final = (16, 32, 64, 128)
"""And of activations; the last where there is more shared memory than on AMD's GPUs."""

LEAST_ROWS: Final = 9
"""Rows of activations from which on they are for it: fewer take as long, or longer."""

_FARTHEST: Final = (1 << 31) - 1

_KERNELS: Final = {
    (rows, w): MODULE.kernel(f"rows{rows}_{w.name}", "PPP" + 7 * "q")
    for rows in _ROWS
    for w in sorted(dtypes.BLOCKS, key=str)
}
_JOINS: Final = {count: MODULE.kernel(f"join{count}", "PPqq") for count in (1, 4)}


class Tiling(NamedTuple):
    """
    How a product is done.

    Attributes:
        rows: of activations of a tile.
        parts: that share the depth.
        chunks: of each of them.
        shared: memory of a block, in bytes.
    """

    rows: int
    parts: int
    chunks: int
    shared: int


@lru_cache(maxsize=4096)
def tiling(m: int, n: int, depth: int, w: DType, units: int, most: int) -> Tiling:
    """
    Tiles of all rows of activations at once, in as many parts as all compute units take at a time.

    Args:
        m: rows of activations.
        n: and of weights.
        depth: terms of a sum.
        w: the weights' format.
        units: compute units of the device.
        most: shared memory of a block, in bytes.

    >>> tiling(32, 4096, 4096, dtypes.q4_k, 132, 232448)[:3]
    (32, 8, 2)
    >>> tiling(60, 4096, 4096, dtypes.q8_0, 60, 65536)[:3]
    (64, 1, 16)
    """
    rows = next(rows for rows in _ROWS if m <= rows)
    shared = _shared(rows, w, most)
    at_once = units * min(1 if rows > 64 else 2, most // shared)
    whole = _chunks(depth)
    parts = min(whole, max(1, at_once // tiles((rows, _WIDTH), m, n)))
    chunks = -(-whole // parts)
    return Tiling(rows, -(-whole // chunks), chunks, shared)


@lru_cache(maxsize=64)
def most_rows(w: DType, most: int) -> int:
    """
    Of activations: a weight is unpacked for each tile, so from two on it is better done before.

    Args:
        w: the weights' format.
        most: shared memory of a block, in bytes.

    >>> most_rows(dtypes.q4_k, 65536), most_rows(dtypes.q4_k, 232448)
    (64, 128)
    """
    some = _ROWS[: -1 if most <= LDS else None]
    return max((rows for rows in some if _shared(rows, w, most) <= most), default=0)


def _shared(rows: int, w: DType, most: int) -> int:
    """Bytes: two of each where copies go on by themselves, and AMD's GPUs have less."""
    weights = w.block_bytes * _CHUNK // w.block_size
    pieces = (weights + 2 * (PACK_BYTES - 1)) // PACK_BYTES | 1
    alone = most <= LDS
    activations = rows * (_DEEP + (GAP if alone else 0)) * dtypes.bf16.block_bytes
    return (1 if alone else 2) * (activations + _WIDTH * pieces * PACK_BYTES)


def _chunks(depth: int) -> int:
    return -(-depth // _CHUNK)


def qmatmul_tiles(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, of both in bf16."""
    if out.numel == 0:
        return
    device = cast("RocmDevice", out.device)
    n, depth = w.shape
    m = out.numel // n
    given = _tiling(m, w, device)
    row = w.strides[0] // w.dtype.block_size * w.dtype.block_bytes
    blocks = tiles((given.rows, _WIDTH), m, n) * given.parts
    with (
        device.keep(Parts).lent(device, _bytes_of_parts(m, w, device)) as parts,
        rounded_rows(device, x, dtypes.bf16) as rows,
    ):
        to = parts.ptr if given.parts > 1 else pointer(out)
        values = to, pointer(rows), w.ptr, m, n, depth, depth, row, given.chunks
        kernel = _KERNELS[given.rows, w.dtype]
        launch(kernel, device, blocks, values, (), shared=given.shared)
        if given.parts > 1:
            size = out.numel
            count = 1 if size % 4 or pointer(out) % PACK_BYTES else 4
            over = -(-size // (BLOCK * count))
            _JOINS[count](device, over, pointer(out), to, size, given.parts)


def _tiling(m: int, w: Tensor, device: RocmDevice) -> Tiling:
    return tiling(m, *w.shape, w.dtype, device.compute_units, room(device))


def _bytes_of_parts(m: int, w: Tensor, device: RocmDevice) -> int:
    parts = _tiling(m, w, device).parts
    return m * w.shape[0] * parts * SUM_BYTES if parts > 1 else 0


def _memory(x: Tensor, w: Tensor) -> int:
    if not x.numel or not w.numel:
        return 0
    parts = _bytes_of_parts(x.numel // x.shape[-1], w, cast("RocmDevice", x.device))
    return space_bytes(parts) + space_bytes(x.numel * dtypes.bf16.block_bytes)


def _takes(x: Tensor, w: Tensor, /) -> str | None:
    device = cast("RocmDevice", x.device)
    most = most_rows(w.dtype, room(device))
    if (reason := few.declined(x, w, LEAST_ROWS, most)) is not None:
        return reason
    n, depth = w.shape
    if max(depth, w.strides[0]) > _FARTHEST:
        return f"rows of w are {w.strides[0]} weights apart, counted to {_FARTHEST}"
    blocks, units = tiles(_WIDTH, 1, n) * _chunks(depth), device.compute_units
    if math.prod(x.shape[:-1]) <= few.MOST_ROWS and blocks < units:
        return f"a weight of {n} x {depth} makes {blocks} blocks, for {units} compute units"
    return None


OPS: Final = [
    implementation(
        "qmatmul",
        qmatmul_tiles,
        {"x": (dtypes.f32,), "w": dtypes.BLOCKS},
        in_place=False,
        workspace=_memory,
        variant="tiles",
        priority=Priority.VENDOR + 30,
        supports=_takes,
        exact=False,
        notes="both rounded to bf16 on the way, in tiles, on matrix instructions, sums in f32",
    )
]
