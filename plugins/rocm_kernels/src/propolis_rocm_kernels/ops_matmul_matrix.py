"""Products of 16-bit numbers on matrix instructions, which ``ops_matmul`` takes where they fit."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis import dtypes
from propolis.errors import OutOfMemoryError
from propolis_rocm_hip.space import Spare
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels._constants import BLOCK
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

Tile = tuple[int, int, int]
"""m, n and how deep operands are read at a time."""


class Costs(NamedTuple):
    """
    What tiles cost on a kind of GPU, but for its speed.

    Attributes:
        rates: of each tile, how well one uses a compute unit.
        filling: depth that a tile could have had in the time that it takes to begin and to end.
        joining: time of a sum that is written and read again, where that of one 64 deep takes 1.
        launching: time of a launch, in such sums.
    """

    rates: Mapping[Tile, float]
    filling: int = 192
    joining: float = 0.05
    launching: int = 40_000


_AMD: Final = Costs({(64, 64, 64): 0.5, (128, 128, 32): 1.0})

_LARGE: Final = Costs(
    {
        (64, 64, 64): 0.5,
        (128, 128, 32): 0.9,  # where there is no room for the others
        (128, 128, 64): 1.0,
        (128, 256, 64): 1.25,
    }
)
"""Those of devices with more shared memory than AMD's; measured on an H200, by ``mma.sync``."""

_GROUPS: Final = Costs(
    {(64, 64, 64): 0.475, (128, 128, 64): 1.0, (128, 256, 64): 1.28},
    filling=560,
    joining=0.04,
    launching=60_000,
)
"""Those of Hopper, where four warps multiply together; fitted to 28 shapes on an H200."""

TILES: Final = tuple({**_AMD.rates, **_LARGE.rates})
"""All that there are kernels for."""

Rated = tuple[tuple[Tile, float], ...]
"""Tiles, and how well each uses a compute unit."""

_SIZE: Final = 2  # bytes of an element
SUM_BYTES: Final = 4
"""Of a sum that is joined with others."""
_PACK: Final = PACK_BYTES // _SIZE
LDS: Final = 64 << 10
"""Shared memory of a block on AMD's GPUs before gfx950."""
_HOPPER: Final = 227 << 10
"""And on NVIDIA's of ``sm_90``, which alone have products by groups of warps."""

MATRIX: Final = (dtypes.f16, dtypes.bf16)
"""What there are instructions for."""

_ARGUMENTS: Final = "PPPPP" + 11 * "q" + "2"
_WAYS: Final = {"along": MATRIX, "across": MATRIX, "wide": (dtypes.bf16,)}
"""How the second operand lies; of ``wide``, along, and the product is f32."""

_KERNELS: Final = {
    (d, way, tile): MODULE.kernel(f"{way}{'x'.join(map(str, tile))}_{d.name}", _ARGUMENTS)
    for way, kinds in _WAYS.items()
    for d in kinds
    for tile in TILES
}
_JOINS: Final = {
    (d, count): MODULE.kernel(f"join{count}_{d.name}", "PPP" + 7 * "q")
    for d in (*MATRIX, dtypes.f32)
    for count in (1, 4)
}


def has_instructions(arch: str, dtype: DType) -> bool:
    """
    Whether an architecture multiplies matrices of a dtype exactly, with sums in f32.

    gfx90a takes denormal numbers of f16 for zero; gfx1250 has other instructions.

    >>> [has_instructions(arch, dtypes.f16) for arch in ("gfx1100", "gfx950", "gfx90a", "gfx1250")]
    [True, True, False, False]
    """
    if arch.startswith("gfx90a"):
        return dtype is dtypes.bf16
    return arch.startswith(("gfx942", "gfx950", "gfx11", "gfx120", "sm_", "hipsim"))


def room(device: Any) -> int:
    """
    Shared memory of a block that tiles are chosen by, in bytes.

    That of gfx950 is larger, but what tiles do with more than 64 KiB is for copies that go on by
    themselves, and was measured on NVIDIA's GPUs.  Who has Hopper's without its products by groups
    of warps counts as having less, lest tiles be chosen for these.
    """
    most: int = device.hardware.shared_bytes
    arch = device.properties.arch
    if arch.startswith("gfx"):
        return min(most, LDS)
    return most if arch == "sm_90" else min(most, _HOPPER - 1)


SIDES: Final = tuple(tile[0] for tile in _AMD.rates)
"""Rows of a tile that there are kernels for."""


class Split(NamedTuple):
    """Tiles of a product, and parts of its depth, of so many steps."""

    tile: Tile
    stages: int
    parts: int
    steps: int


@lru_cache(maxsize=4096)
def split_for(
    m: int,
    n: int,
    depth: int,
    units: int,
    most: int,
    *,
    batches: int = 1,
    whole: bool = False,
    side: int | None = None,
    more: Rated = (),
) -> Split:
    """
    The tiles and parts that take the least time: rounds of all compute units, each of one tile.

    Args:
        m: rows of a.
        n: and of b.
        depth: terms of a sum.
        units: compute units of the device.
        most: shared memory of a block, in bytes.
        batches: products; of several, the depth is not shared.
        whole: nor is it here.
        side: only tiles of so many rows.
        more: tiles, beside those of plain products, where there is more memory than on AMD's GPUs.

    >>> split_for(1024, 1024, 1024, 132, 232448)[::2]
    ((128, 128, 64), 1)
    >>> split_for(512, 4096, 14336, 132, 232448)[::2]
    ((128, 256, 64), 2)
    >>> split_for(2048, 2048, 2048, 60, 101376, side=128)[::2]
    ((128, 128, 32), 1)
    """
    costs, found = costs_for(most), dict[Split, float]()
    for tile, rate in rates(most, more).items():
        if side not in (None, tile[0]):
            continue
        blocks, deep = tiles(tile[:2], m, n) * batches, max(1, math.ceil(depth / tile[2]))
        shared_by = 1 if whole or batches > 1 else min(deep, max(1, 4 * units // max(1, blocks)))
        for wanted in range(1, shared_by + 1):
            steps = math.ceil(deep / wanted)
            split = Split(tile, stages_for(tile, most), math.ceil(deep / steps), steps)
            rounds = math.ceil(blocks * split.parts / units)
            time = rounds * tile[0] * tile[1] / rate * (steps * tile[2] + costs.filling) / 64
            if split.parts > 1:
                time += split.parts * m * n * costs.joining + costs.launching
            found[split] = time
    return min(found, key=found.__getitem__)


def costs_for(most: int) -> Costs:
    """What tiles cost on a device with so much shared memory for a block, in bytes."""
    return _AMD if most <= LDS else _GROUPS if by_groups(most) else _LARGE


def by_groups(most: int) -> bool:
    """Whether groups of warps multiply, on a device with so much shared memory, in bytes."""
    return most >= _HOPPER


def rates(most: int, more: Rated = ()) -> dict[Tile, float]:
    """
    The tiles that a block has shared memory for, and how well each uses a compute unit.

    Args:
        most: shared memory of a block, in bytes.
        more: tiles, beside those of plain products, where there is more than on AMD's GPUs.
    """
    known = {**costs_for(most).rates, **(dict(more) if most > LDS else {})}
    return {t: rate for t, rate in known.items() if bytes_of(t) * stages_for(t, most) <= most}


def bytes_of(tile: Tile) -> int:
    """Of a stage of operands in shared memory."""
    return sum(tile[:2]) * (tile[2] + GAP) * _SIZE


def stages_for(tile: Tile, most: int) -> int:
    """
    How many there are: more than two where copies go on by themselves, which AMD's GPUs do not do.

    >>> stages_for((128, 128, 32), 65536), stages_for((128, 128, 32), 101376)
    (2, 3)
    >>> stages_for((128, 128, 64), 232448), stages_for((128, 256, 64), 232448)
    (5, 4)
    """
    if most <= LDS:
        return 2
    if by_groups(most):
        return 5 if tile[1] == 128 else 4  # so many of one block fit, and of three of the smallest
    return 4 if tile[1] > 128 else 3  # so many of one block fit, and of two smaller ones


class Parts(Spare):
    """Where sums of parts of the depth lie until they are joined."""

    holds = "sums of parts of products"


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
    whole: bool = False,
) -> bool:
    """
    Queue a product, if matrix instructions can take it as it lies in memory.

    Where tiles are few, blocks share the depth, and their sums are joined in order; not where
    memory for them is lacking.

    Args:
        device: a ``RocmDevice``.
        dtype: of both operands and the product: one of :data:`MATRIX`.
        given: rows and batches; its steps divide all of their strides.
        places: addresses of out, a, b and the bias, or 0.
        strides: m, n and depth; of a, b and the bias between rows and between elements.
        wide: the product and the bias are f32 instead, of operands in bf16.
        out_row: between rows of the product, where these are longer than n.
        side: rows of a tile, where they are not for :func:`split_for` to choose.
        whole: no blocks share the depth.

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
    batches, out_row = given.batches.numel, out_row or n
    split = _split(device, m, n, depth, batches=batches, side=side, whole=whole)
    with device.context.lock:
        parts = 0
        if split.parts > 1:
            try:
                parts = device.keep(Parts).reserve(device, _bytes_of_parts(split, m, n))
            except OutOfMemoryError:
                split = _split(device, m, n, depth, side=side, whole=True)
        out, *operands, bias = places
        launch(
            _KERNELS[dtype, "wide" if wide else "across" if across else "along", split.tile],
            device,
            tiles(split.tile[:2], m, n) * (split.parts if parts else batches),
            (
                out,
                parts,
                *operands,
                bias,
                m,
                n,
                depth,
                a_row,
                apart,
                *of_bias,
                out_row,
                split.steps,
            ),
            (split.stages, given.batches.packed),
            shared=split.stages * bytes_of(split.tile),
        )
        if parts:
            to = dtypes.f32 if wide else dtype
            fours = not (n % 4 or out_row % 4 or out % (4 * to.block_bytes))
            count = 4 if fours else 1
            values = out, parts, bias, *of_bias, m, n, out_row, split.parts
            launch(_JOINS[to, count], device, -(-m * n // (BLOCK * count)), values, ())
    return True


def _split(device: Any, m: int, n: int, depth: int, **rest: Any) -> Split:
    return split_for(m, n, depth, device.compute_units, room(device), **rest)


def _bytes_of_parts(split: Split, m: int, n: int) -> int:
    return split.parts * m * n * SUM_BYTES if split.parts > 1 else 0


def parts_bytes(device: Any, m: int, n: int, depth: int, side: int | None = None) -> int:
    """What :func:`launch_matrix` allocates at most, for so many rows of both and terms of a sum."""
    if not m * n:
        return 0
    return space_bytes(_bytes_of_parts(_split(device, m, n, depth, side=side), m, n))


OPS: Final[list[OpImpl]] = []
