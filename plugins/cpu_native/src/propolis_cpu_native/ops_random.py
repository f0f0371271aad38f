"""Places drawn by softmax, as tokens are."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_cpu_native._implementation import row_step
from propolis_cpu_native._implementation import strided_implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native
from propolis_cpu_native.ops_reduce import in_rows


if TYPE_CHECKING:
    from propolis import Tensor

_FARTHEST: Final = 1 << 32


def _takes(logits: Tensor, *per_row: Tensor, k: int = 0, **cuts: Tensor | None) -> str | None:
    """None, or why not."""
    del k
    if logits.shape[-1] > _FARTHEST:
        return f"places to {logits.shape[-1]}, counted to {_FARTHEST}"
    if not all(one is None or one.is_contiguous for one in (*per_row, *cuts.values())):
        return "settings of rows do not lie side by side"
    return in_rows(logits)


def draw(
    out: Tensor,
    logits: Tensor,
    keys: Tensor,
    temperature: Tensor,
    /,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    k: int = 0,
) -> None:
    """The exponential race of those that cuts leave."""
    rows, places = logits.shape
    given: list[Any] = [None if one is None else one.array for one in (top_k, top_p, min_p)]
    sizes = KINDS[logits.dtype], rows, places, k, logits.device.threads
    by = keys.array, temperature.array, *given
    native().draw(out.array, logits.array, row_step(logits), *by, *sizes)


OPS: Final = [strided_implementation("draw", draw, supports=_takes)]
