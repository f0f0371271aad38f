"""Shares of rows, as of tokens that may be drawn."""

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


def softmax(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """``exp(x) / sum(exp(x))`` over the last dimension."""
    del dim
    width = x.shape[-1]
    sizes = KINDS[x.dtype], x.numel // max(width, 1), width, out.device.threads
    native().softmax(out.array, x.array, row_step(x), *sizes)


OPS: Final = [strided_implementation("softmax", softmax, supports=along_rows)]
