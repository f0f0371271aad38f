"""The likeliest of rows, as of logits, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_cpu_native._implementation import row_step
from propolis_cpu_native._implementation import strided_implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native
from propolis_cpu_native.ops_reduce import along_rows


if TYPE_CHECKING:
    from propolis import Tensor

_MOST: Final = 1024
"""How many are looked for at most: of more it is faster to sort all."""

_FARTHEST: Final = 1 << 32


def _some(x: Tensor, /, k: int, dim: int = -1, *, largest: bool = True) -> str | None:
    """None, or why not: the smallest, many, or along another dimension than the last."""
    if not largest:
        return "the largest alone"
    if not 0 < k <= _MOST:
        return f"{k} are looked for: from 1 to {_MOST}"
    if x.shape[-1] > _FARTHEST:
        return f"places to {x.shape[-1]}, counted to {_FARTHEST}"
    return along_rows(x, dim)


def topk(
    values: Tensor,
    indices: Tensor,
    x: Tensor,
    /,
    k: int,
    dim: int = -1,
    *,
    largest: bool = True,
) -> None:
    """The first ``k`` in order: of equal ones the first, and NaN before all."""
    del dim, largest
    width = x.shape[-1]
    sizes = KINDS[x.dtype], x.numel // width, width, k, x.device.threads
    native().first_of_rows(values.array, indices.array, x.array, row_step(x), *sizes)


OPS: Final = [strided_implementation("topk", topk, supports=_some)]
