"""The largest of rows, as of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis.ops.reduce import over
from propolis_cpu_native._implementation import row_step
from propolis_cpu_native._implementation import strided_implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis import Tensor


def in_rows(x: Tensor) -> str | None:
    """None, or why not: rows lie anyhow."""
    return None if row_step(x) is not None else "rows do not lie one distance apart"


def along_rows(x: Tensor, /, dim: int = -1) -> str | None:
    """None, or why not: another dimension than the last."""
    if dim not in {-1, len(x.shape) - 1}:
        return "the last dimension alone"
    return in_rows(x)


def _over_rows(
    x: Tensor, /, dims: int | tuple[int, ...] | None = None, *, keepdim: bool = False
) -> str | None:
    """None, or why not: other dimensions than the last."""
    del keepdim
    only = set(over("max", x.shape, dims))
    if not x.shape or only != {len(x.shape) - 1}:
        return "the last dimension alone"
    return in_rows(x)


def _run(out: Tensor, x: Tensor, *, places: bool) -> None:
    width = x.shape[-1]
    sizes = KINDS[x.dtype], x.numel // width, width, out.device.threads
    native().largest_of_rows(out.array, places, x.array, row_step(x), *sizes)


def argmax(out: Tensor, x: Tensor, /, dim: int = -1) -> None:
    """Place of the first largest element; NaN is larger than any number."""
    _run(out, x, places=True)


def max(  # noqa: A001  the op's name
    out: Tensor, x: Tensor, /, dims: int | Sequence[int] | None = None, *, keepdim: bool = False
) -> None:
    """The largest; NaN where any is."""
    del dims, keepdim
    _run(out, x, places=False)


OPS: Final = [
    strided_implementation("argmax", argmax, supports=along_rows),
    strided_implementation("max", max, supports=_over_rows),
]
