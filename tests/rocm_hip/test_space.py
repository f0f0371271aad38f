"""Tiles of weights; memory that implementations work in: tests/rocm_kernels/test_walks.py."""

from __future__ import annotations

from propolis_rocm_hip.space import TILE_BYTES
from propolis_rocm_hip.space import tile_rows


def test_tiles_are_alike() -> None:
    """A weight that is a little larger than a tile is two halves; no tile is larger than told."""
    rows = TILE_BYTES // (64 * 2)
    assert rows == tile_rows(rows, 64, 2)
    assert rows // 2 + 128 == tile_rows(rows + 1, 64, 2)
    for n, depth in ((4680, 14336), (16384, 53248), (128256, 4096), (100, 64)):
        tile = tile_rows(n, depth, 2)
        assert tile * depth * 2 <= TILE_BYTES
        assert tile == n or tile % 128 == 0


def test_long_rows() -> None:
    """Of rows that are longer than a tile there are 128 at a time, or fewer in all."""
    assert tile_rows(300, TILE_BYTES, 2) == 128
    assert tile_rows(3, TILE_BYTES, 2) == 3
