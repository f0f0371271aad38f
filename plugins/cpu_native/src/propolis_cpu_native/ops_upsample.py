"""Larger images."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis.dtypes import PLAIN
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor


def upsample_nearest2d(out: Tensor, x: Tensor, /, size: tuple[int, int]) -> None:
    """Each pixel several times."""
    del size
    bits = f"u{x.dtype.block_bytes}"  # numpy has no name for all dtypes
    arrays = out.array.view(bits), x.array.view(bits)
    native().upsample_nearest2d(*arrays, x.dtype.block_bytes, out.device.threads)


OPS: Final = [implementation("upsample_nearest2d", upsample_nearest2d, dtypes=PLAIN)]
