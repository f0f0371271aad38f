"""Products of 16-bit numbers on matrix instructions, which ``ops_matmul`` takes where they fit."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._constants import GAP
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._product import launch
from propolis_rocm_kernels._product import tiles


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis import OpImpl
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis_rocm_kernels._product import Plan

MODULE: Final = Module("matmul_matrix")

_AMD: Final = {(64, 64, 64): 0.5, (128, 128, 32): 1.0}
"""Tiles: m, n and how deep operands are read at a time; how well one uses a compute unit."""

_LARGE: Final = {
    (64, 64, 64): 0.5,
    (128, 128, 32): 0.9,  # where there is no room for the others
    (128, 128, 64): 1.0,
    (128, 256, 64): 1.25,
}
"""Those of devices with more shared memory than AMD's; measured on an H200."""

TILES: Final = tuple(_AMD | _LARGE)
"""All that there are kernels for."""

_SIZE: Final = 2  # bytes of an element
_PACK: Final = PACK_BYTES // _SIZE
LDS: Final = 64 << 10
"""Shared memory of a block on AMD's GPUs."""

MATRIX: Final = (dtypes.f16, dtypes.bf16)
"""What there are instructions for."""

_ARGUMENTS: Final = "PPPP" + 10 * "q" + "2"
_WAYS: Final = {"along": MATRIX, "across": MATRIX, "wide": (dtypes.bf16,)}
"""How the second operand lies; of ``wide``, along, and the product is f32."""

_KERNELS: Final = {
    (d, way, tile): MODULE.kernel(f"{way}{'x'.join(map(str, tile))}_{d.name}", _ARGUMENTS)
    for way, kinds in _WAYS.items()
    for d in kinds
    for tile in TILES
}


def has_instructions(arch: str, dtype: DType) -> bool:
    """
    Whether an architecture multiplies matrices of a dtype exactly, with sums in f32.

    gfx90a takes denormal numbers of f16 for zero.

    >>> has_instructions("gfx1100", dtypes.f16), has_instructions("gfx90a", dtypes.f16)
    (True, False)
    """
    if arch.startswith("gfx90a"):
        return dtype is dtypes.bf16
    return arch.startswith(("gfx94", "gfx11", "gfx12", "sm_", "hipsim"))


SIDES: Final = tuple(tile[0] for tile in _AMD)
"""Rows of a tile that there are kernels for."""


@lru_cache(maxsize=4096)
def tile_for(
    m: int, n: int, batches: int, units: int, most: int, side: int | None = None
) -> tuple[int, int, int]:
    """
    The tiles that take the least time: rounds of all compute units, of so many sums each.

    Args:
        m: rows of a.
        n: and of b.
        batches: products.
        units: compute units of the device.
        most: shared memory of a block, in bytes.
        side: only tiles of so many rows.

    >>> tile_for(1024, 1024, 1, 132, 232448), tile_for(2048, 2048, 1, 132, 232448)
    ((64, 64, 64), (128, 256, 64))
    >>> tile_for(2048, 2048, 1, 60, 65536), tile_for(2048, 2048, 1, 60, 101376, side=128)
    ((128, 128, 32), (128, 128, 32))
    """
    known = {tile: rate for tile, rate in rates(most).items() if side in (None, tile[0])}

    def time(tile: tuple[int, int, int]) -> float:
        rounds = math.ceil(tiles(tile[:2], m, n) * batches / units)
        return rounds * tile[0] * tile[1] / known[tile]

    return min(known, key=time)


def rates(
    most: int, more: Mapping[tuple[int, int, int], float] | None = None
) -> dict[tuple[int, int, int], float]:
    """
    The tiles that a block has shared memory for, and how well each uses a compute unit.

    Args:
        most: shared memory of a block, in bytes.
        more: tiles, beside those of plain products, where there is more than on AMD's GPUs.
    """
    known = {**_LARGE, **(more or {})} if most > LDS else _AMD
    return {t: rate for t, rate in known.items() if bytes_of(t) * stages_for(t, most) <= most}


def bytes_of(tile: tuple[int, int, int]) -> int:
    """Of a stage of operands in shared memory."""
    return sum(tile[:2]) * (tile[2] + GAP) * _SIZE


def stages_for(tile: tuple[int, int, int], most: int) -> int:
    """
    How many there are: more than two where copies go on by themselves, which AMD's GPUs do not do.

    >>> stages_for((128, 128, 32), 65536), stages_for((128, 128, 64), 232448)
    (2, 3)
    >>> stages_for((128, 256, 64), 232448)
    4
    """
    if most <= LDS:
        return 2
    return 4 if tile[1] > 128 else 3  # so many of one block fit, and of two smaller ones


def launch_matrix(
    device: Any,
    dtype: DType,
    given: Plan,
    places: tuple[int, int, int, int],
    strides: Shape,
    *,
    wide: bool = False,
    out_row: int = 0,
    side: int | None = None,
) -> bool:
    """
    Queue a product, if matrix instructions can take it as it lies in memory.

    Args:
        device: a ``RocmDevice``.
        dtype: of both operands and the product: one of :data:`MATRIX`.
        given: rows and batches; its steps divide all of their strides.
        places: addresses of out, a, b and the bias, or 0.
        strides: m, n and depth; of a, b and the bias between rows and between elements.
        wide: the product and the bias are f32 instead, of operands in bf16.
        out_row: between rows of the product, where these are longer than n.
        side: rows of a tile, where they are not for :func:`tile_for` to choose.

    Returns:
        Whether it did.
    """
    m, n, depth, a_row, a_step, b_row, b_step, *of_bias = strides
    across = b_row == 1 and b_step != 1
    apart = b_step if across else b_row
    if (
        not has_instructions(device.properties.arch, dtype)
        or a_step != 1
        or depth % _PACK
        or (n % _PACK if across else b_step != 1)
        or any(place % PACK_BYTES for place in places[1:3])
        or any(stride % _PACK for stride in (given.step, given.b_step, apart))
    ):
        return False
    most = device.hardware.shared_bytes
    tile = tile_for(m, n, given.batches.numel, device.compute_units, most, side)
    stages, stage = stages_for(tile, most), bytes_of(tile)
    way = "wide" if wide else "across" if across else "along"
    launch(
        _KERNELS[dtype, way, tile],
        device,
        tiles(tile[:2], m, n) * given.batches.numel,
        (*places, m, n, depth, a_row, apart, *of_bias, out_row or n),
        (stages, given.batches.packed),
        shared=stages * stage,
    )
    return True


OPS: Final[list[OpImpl]] = []
