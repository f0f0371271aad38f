"""Products of some rows of f32 activations with weights in block formats, in tiles."""

from __future__ import annotations

import math
from contextlib import contextmanager
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
from propolis_rocm_kernels.ops_matmul_matrix import by_groups
from propolis_rocm_kernels.ops_matmul_matrix import room
from propolis_rocm_kernels.ops_quantized import Rounded
from propolis_rocm_kernels.ops_quantized import rounded_rows


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Storage
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

_ALIGNED_TO: Final = MODULE.constant("ALIGNED", 1024)
"""Bytes, for operands of groups of warps."""

_STAGES: Final = MODULE.constant("X_STAGES", 3)
"""Of activations, where groups of warps multiply: as many as these need to have one on its way."""

_ROWS: Final = (16, 32, 64, 128)
"""And of activations; the last where there is more shared memory than on AMD's GPUs."""

LEAST_ROWS: Final = 9
"""Rows of activations from which on they are for it: fewer take as long, or longer."""

_FARTHEST: Final = (1 << 31) - _CHUNK

_KERNELS: Final = {
    (rows, w): MODULE.kernel(f"rows{rows}_{w.name}", "PPP" + 7 * "q")
    for rows in _ROWS
    for w in sorted(dtypes.BLOCKS, key=str)
}
_ARRANGE: Final = MODULE.kernel("arrange", "PPqqq")
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
    Tiles of as many rows of activations as can be, in as many parts as all units take at a time.

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
    rows = next((rows for rows in _ROWS if m <= rows), _ROWS[-1])
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

    By groups of warps, whose products go on while weights are unpacked, two are not.

    Args:
        w: the weights' format.
        most: shared memory of a block, in bytes.

    >>> [most_rows(dtypes.q4_k, most) for most in (65536, 101376, 232448)]
    [64, 64, 256]
    """
    some = _ROWS[: -1 if most <= LDS else None]
    rows = max((rows for rows in some if _shared(rows, w, most) <= most), default=0)
    return 2 * rows if by_groups(most) else rows


def _shared(rows: int, w: DType, most: int) -> int:
    """
    Bytes: two of each where copies go on by themselves, and AMD's GPUs have less.

    Of activations there are more where groups of warps multiply, and they begin aligned.
    """
    nbytes = w.block_bytes * _CHUNK // w.block_size
    pieces = (nbytes + 2 * (PACK_BYTES - 1)) // PACK_BYTES | 1
    weights = _WIDTH * pieces * PACK_BYTES
    alone = most <= LDS
    activations = rows * (_DEEP + (GAP if alone else 0)) * dtypes.bf16.block_bytes
    if by_groups(most):
        return _ALIGNED_TO + _STAGES * activations + 2 * weights
    return (1 if alone else 2) * (activations + weights)


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
        _rows(device, x, m, given.rows) as rows,
    ):
        to = parts.ptr if given.parts > 1 else pointer(out)
        values = to, rows, w.ptr, m, n, depth, depth, row, given.chunks
        kernel = _KERNELS[given.rows, w.dtype]
        launch(kernel, device, blocks, values, (), shared=given.shared)
        if given.parts > 1:
            size = out.numel
            count = 1 if size % 4 or pointer(out) % PACK_BYTES else 4
            over = -(-size // (BLOCK * count))
            _JOINS[count](device, over, pointer(out), to, size, given.parts)


@contextmanager
def _rows(device: RocmDevice, x: Tensor, m: int, of_tile: int) -> Iterator[int]:
    """The address of rounded activations: in rows, or as groups of warps have them."""
    if by_groups(room(device)):
        with arranged_rows(device, x, m, of_tile) as memory:
            yield memory.ptr
    else:
        with rounded_rows(device, x, dtypes.bf16) as rows:
            yield pointer(rows)


@contextmanager
def arranged_rows(device: RocmDevice, x: Tensor, m: int, of_tile: int) -> Iterator[Storage]:
    """
    Activations in bf16 as groups of warps have them: stages of tiles, as they are copied.

    Args:
        device: where they are.
        x: m rows that follow each other.
        m: how many.
        of_tile: rows of a tile: zeros where there are no more.
    """
    depth = x.shape[-1]
    nbytes = _bytes_of_rows(m, depth, of_tile)
    with device.keep(Rounded).lent(device, nbytes) as memory:
        blocks = -(-nbytes // (PACK_BYTES * BLOCK))
        _ARRANGE(device, blocks, memory.ptr, pointer(x), m, depth, of_tile)
        yield memory


def _bytes_of_rows(m: int, depth: int, of_tile: int) -> int:
    """Of activations as groups of warps have them, in whole tiles and chunks."""
    rows = -(-m // of_tile) * of_tile
    return rows * _chunks(depth) * _CHUNK * dtypes.bf16.block_bytes


def _tiling(m: int, w: Tensor, device: RocmDevice) -> Tiling:
    return tiling(m, *w.shape, w.dtype, device.compute_units, room(device))


def _bytes_of_parts(m: int, w: Tensor, device: RocmDevice) -> int:
    parts = _tiling(m, w, device).parts
    return m * w.shape[0] * parts * SUM_BYTES if parts > 1 else 0


def _memory(x: Tensor, w: Tensor) -> int:
    if not x.numel or not w.numel:
        return 0
    device, m = cast("RocmDevice", x.device), x.numel // x.shape[-1]
    rounded = x.numel * dtypes.bf16.block_bytes
    if by_groups(room(device)):
        rounded = _bytes_of_rows(m, x.shape[-1], _tiling(m, w, device).rows)
    return space_bytes(_bytes_of_parts(m, w, device)) + space_bytes(rounded)


def _takes(x: Tensor, w: Tensor, /) -> str | None:
    device = cast("RocmDevice", x.device)
    most = most_rows(w.dtype, room(device))
    if (reason := few.declined(x, w, LEAST_ROWS, most)) is not None:
        return reason
    if by_groups(room(device)) and not x.is_contiguous:
        return "rows of x do not follow each other"
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
