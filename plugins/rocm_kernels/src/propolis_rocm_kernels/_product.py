"""Launches of matrix products ``a @ b.T``: which kernel, over how many blocks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._constants import ROWS_OF_1
from propolis_rocm_kernels._constants import ROWS_OF_4
from propolis_rocm_kernels._constants import ROWS_OF_8
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._layouts import collapse
from propolis_rocm_kernels._layouts import strided_of


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping

    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis_rocm_kernels._kernels import Kernel
    from propolis_rocm_kernels._layouts import Strided

ROWS: Final = {1: ROWS_OF_1, 4: ROWS_OF_4, 8: ROWS_OF_8}
"""Up to how many rows of ``a`` a mat-vec kernel takes: rows of weights a group of lanes has."""


class Kernels(NamedTuple):
    """
    The kernels of one kind of product.

    Attributes:
        tiles: by the side of a tile.
        rows: by the most rows of ``a``: each weight is read once.
    """

    tiles: Mapping[int, Kernel]
    rows: Mapping[int, Kernel]


class Plan(NamedTuple):
    """
    A product whose leading dimensions are collapsed.

    Attributes:
        m: rows of ``a`` that share one ``b``.
        row: between them, in elements of ``a``.
        batches: what is left, of ``a`` and ``b``.
        step: divides every stride between rows and batches of ``a``.
        b_step: and between batches of ``b``.
    """

    m: int
    row: int
    batches: Strided
    step: int
    b_step: int


@lru_cache(maxsize=4096)
def plan(lead: Shape, a: Shape, b: Shape) -> Plan:
    """
    Collapse the leading dimensions of the output, given the strides of both operands there.

    >>> plan((2, 3), (12, 4), (0, 0))[:2]
    (6, 4)
    """
    dims = collapse(lead, (a, b))
    m, row = 1, 0
    if dims[-1][2] == 0:
        m, row, _ = dims.pop()
    sizes, a_strides, b_strides = zip(*dims, strict=True) if dims else ((), (), ())
    batches = strided_of(sizes, (sizes, a_strides), (sizes, b_strides))
    return Plan(m, row, batches, math.gcd(row, *a_strides), math.gcd(*b_strides))


def in_packs(address: int, dtype: DType, step: int) -> bool:
    """Whether runs may be loaded at once that start at multiples of RUN elements of such rows."""
    pack = min(PACK_BYTES, RUN * dtype.block_bytes)
    return address % pack == 0 and step * dtype.block_bytes % pack == 0


def rows_for(m: int, of: Iterable[int] = ROWS) -> int:
    """The mat-vec kernel for so many rows; 0 where tiles are better."""
    return next((most for most in of if m <= most), 0)


@lru_cache(maxsize=4096)
def lanes_for(depth: int, rows: int, warp: int, units: int) -> int:
    """
    How many lanes of a warp work on a row of weights.

    All of them while rows are few; fewer where many would idle at the row's end.

    Args:
        depth: elements of a row.
        rows: groups of rows that there are.
        warp: threads of a warp.
        units: compute units of the device, that want two blocks each at least.

    >>> lanes_for(576, 49152, 32, 60)
    16
    >>> lanes_for(576, 576, 32, 60)
    32
    """
    runs = -(-depth // RUN)
    lanes = warp
    while lanes > RUN and rows * lanes // 2 >= 2 * units * BLOCK:
        if runs >= 0.85 * lanes * -(-runs // lanes):
            break
        lanes //= 2
    return lanes


def launch_rows(
    kernel: Kernel, device: Any, most: int, given: Plan, n: int, depth: int, values: tuple[Any, ...]
) -> None:
    """Queue the kernel that reads each weight once; ``values`` go before ``first``."""
    groups = -(-n // ROWS[most]) * given.batches.numel
    lanes = lanes_for(depth, groups, device.warp_size, device.compute_units)
    along = -(-n // (BLOCK // lanes * ROWS[most]))
    launch(kernel, device, along * given.batches.numel, values, (lanes, given.batches.packed))


def launch_tiles(
    kernels: Mapping[int, Kernel], device: Any, given: Plan, n: int, values: tuple[Any, ...]
) -> None:
    """Queue the tiled kernel, of large tiles where these are enough for all compute units."""
    m, batches = given.m, given.batches
    side = side_for(kernels, device.compute_units, m, n, batches.numel)
    launch(kernels[side], device, tiles(side, m, n) * batches.numel, values, (batches.packed,))


def side_for(sides: Iterable[int], units: int, m: int, n: int, batches: int) -> int:
    """The largest tiles of which there are enough for all compute units, else the smallest."""
    side, *more = sorted(sides)
    for larger in more:
        if tiles(larger, m, n) * batches >= units and m > side < n:
            side = larger
    return side


def tiles(side: int | tuple[int, int], m: int, n: int) -> int:
    """How many tiles of one side, or of two, a product of (m, n) has."""
    down, along = (side, side) if isinstance(side, int) else side
    return -(-m // down) * -(-n // along)


def launch(
    kernel: Kernel,
    device: Any,
    blocks: int,
    values: tuple[Any, ...],
    rest: tuple[Any, ...],
    shared: int = 0,
) -> None:
    """Queue a kernel over any number of blocks; the first one's goes between its arguments."""
    for first in range(0, blocks, MAX_BLOCKS):
        kernel(device, min(blocks - first, MAX_BLOCKS), *values, first, *rest, shared=shared)
