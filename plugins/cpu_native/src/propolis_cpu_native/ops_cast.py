"""Numbers as those of another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import FLOATS
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Tensor

_NUMBERS: Final[dict[DType, int]] = {**KINDS, dtypes.i32: 3, dtypes.i64: 4}


def _supports(x: Tensor, dtype: DType, /) -> str | None:
    """None, or why not."""
    if dtype not in FLOATS:
        return f"no {dtype} comes out"
    if x.dtype not in FLOATS and dtype is not dtypes.f32:
        return f"of {x.dtype} f32 alone"
    return None


def cast(out: Tensor, x: Tensor, dtype: DType, /) -> None:
    """``x`` rounded to the nearest."""
    del dtype  # out has it
    native().cast(
        out.array, x.array, _NUMBERS[x.dtype], x.numel, KINDS[out.dtype], out.device.threads
    )


OPS: Final = [implementation("cast", cast, dtypes=frozenset(_NUMBERS), supports=_supports)]
