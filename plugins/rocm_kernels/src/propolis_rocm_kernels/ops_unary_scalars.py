"""Elementwise ops of one tensor and scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import Elementwise
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._scalars import letter
from propolis_rocm_kernels._scalars import scalar


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis import Tensor
    from propolis.dtypes import DType

MODULE: Final = Module("unary_scalars")


def _kernels(
    name: str, scalars: int, kinds: Collection[DType], *, heavy: bool
) -> dict[DType, Elementwise]:
    MODULE.constant(f"HEAVY_{name}", heavy)
    return {
        dtype: Elementwise(
            MODULE,
            f"{name}_{dtype.name}",
            1,
            dtype.block_bytes,
            heavy=heavy,
            scalars=letter(dtype) * scalars,
        )
        for dtype in kinds
    }


_AFFINE: Final = _kernels("affine", 2, dtypes.PLAIN, heavy=False)
_CLAMP: Final = _kernels("clamp", 2, dtypes.PLAIN, heavy=False)
_POWF: Final = _kernels("powf", 1, dtypes.FLOATS, heavy=True)
_ELU: Final = _kernels("elu", 1, dtypes.FLOATS, heavy=True)


def affine(out: Tensor, x: Tensor, /, mul: float, add: float) -> None:
    """``x * mul + add``."""
    dtype = x.dtype
    _AFFINE[dtype](out, x, scalars=(scalar(mul, dtype), scalar(add, dtype)))


def clamp(out: Tensor, x: Tensor, /, low: float, high: float) -> None:
    """Every element, moved into [low, high]."""
    dtype = x.dtype
    _CLAMP[dtype](out, x, scalars=(scalar(low, dtype), scalar(high, dtype)))


def powf(out: Tensor, x: Tensor, /, exponent: float) -> None:
    """Every element to one power."""
    _POWF[x.dtype](out, x, scalars=(scalar(exponent, x.dtype),))


def elu(out: Tensor, x: Tensor, /, alpha: float = 1.0) -> None:
    """``x`` where positive, else ``alpha * (exp(x) - 1)``."""
    _ELU[x.dtype](out, x, scalars=(scalar(alpha, x.dtype),))


OPS: Final = [
    implementation("affine", affine, dtypes.PLAIN),
    implementation("clamp", clamp, dtypes.PLAIN),
    implementation("powf", powf, dtypes.FLOATS),
    implementation("elu", elu, dtypes.FLOATS),
]
