"""Choice between two tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import Elementwise
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("ternary")

# Elements are moved as they are: a kernel for each size of the condition and of what is chosen.
_WHERE: Final = {
    (c, t): Elementwise(MODULE, f"where_b{c}_b{t}", 3, max(c, t))
    for c in (1, 2, 4, 8)
    for t in (1, 2, 4, 8)
}


def where(out: Tensor, condition: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a`` where the condition is not 0, else ``b``."""
    _WHERE[condition.dtype.block_bytes, a.dtype.block_bytes](out, condition, a, b)


OPS: Final = [
    implementation("where", where, {"condition": dtypes.INTEGERS, "a": dtypes.PLAIN}),
]
