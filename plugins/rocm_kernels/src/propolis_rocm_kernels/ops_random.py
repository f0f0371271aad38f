"""Philox numbers: uniform and normal."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._scalars import letter
from propolis_rocm_kernels._scalars import scalar


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis import Tensor
    from propolis.dtypes import DType
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("random")


def _kernels(name: str) -> dict[DType, Kernel]:
    return {
        d: MODULE.kernel(f"{name}_{d.name}", f"PqqQQ{2 * letter(d)}1")
        for d in sorted(dtypes.FLOATS, key=str)
    }


_UNIFORM: Final = _kernels("uniform")
_NORMAL: Final = _kernels("normal")


def uniform(
    target: Tensor,
    /,
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: int,
    offset: int = 0,
) -> None:
    """``low + u * (high - low)``, computed in f32 (f64 for f64)."""
    _draw(_UNIFORM, target, low, high - low, seed, offset)


def normal(
    target: Tensor,
    /,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: int,
    offset: int = 0,
) -> None:
    """Pairs of uniform numbers turned into pairs of normal ones, in f32 (f64 for f64)."""
    _draw(_NORMAL, target, mean, std, seed, offset)


def _draw(
    kernels: Mapping[DType, Kernel],
    target: Tensor,
    first: float,
    second: float,
    seed: int,
    offset: int,
) -> None:
    if target.numel == 0:
        return
    dtype = target.dtype
    scalars = scalar(first, dtype), scalar(second, dtype)
    packed, n, _, starts = strided_of(target.shape, (target.shape, target.strides))
    for i, (start,) in enumerate(starts):
        at = pointer(target) + start * dtype.block_bytes
        blocks = blocks_for(n + 3, 4)
        kernels[dtype](target.device, blocks, at, i * n, n, seed, offset, *scalars, packed)


OPS: Final = [
    implementation("uniform", uniform, dtypes.FLOATS, in_place=False),
    implementation("normal", normal, dtypes.FLOATS, in_place=False),
]
