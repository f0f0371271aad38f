"""Elementwise ops of one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import OpImpl
from propolis import Priority
from propolis import dtypes
from propolis_rocm_kernels._elementwise import Elementwise
from propolis_rocm_kernels._kernels import Module


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection

    from propolis import Tensor
    from propolis.dtypes import DType

MODULE = Module("unary")

# Of floats alone, and long.
FLOAT_OPS: Final = (
    "exp log sin cos tanh sqrt rsqrt recip erf sigmoid silu gelu gelu_erf quick_gelu softplus"
)
# Of integers too, and short.
PLAIN_OPS: Final = "abs neg sqr relu sign"
# Whole numbers round to themselves: those are copies.
ROUNDING_OPS: Final = "floor ceil round"


def _implement(name: str, kinds: Collection[DType], *, heavy: bool) -> OpImpl:
    kernels = {
        dtype: Elementwise(MODULE, f"{name}_{dtype.name}", 1, dtype.block_bytes, heavy=heavy)
        for dtype in kinds
    }

    def run(out: Tensor, x: Tensor, /) -> None:
        kernels[x.dtype](out, x)

    return record(name, run, kinds)


def record(name: str, fn: Callable[..., None], kinds: Collection[DType]) -> OpImpl:
    """How this plugin does an elementwise op: at any strides, and in place."""
    fn.__name__ = fn.__qualname__ = name
    return OpImpl(
        op=name,
        fn=fn,
        device="rocm",
        dtypes=frozenset(kinds),
        priority=Priority.GENERIC,
        capture_safe=True,
        in_place=True,
    )


OPS = [
    *(_implement(name, dtypes.FLOATS, heavy=True) for name in FLOAT_OPS.split()),
    *(_implement(name, dtypes.PLAIN, heavy=False) for name in PLAIN_OPS.split()),
    *(_implement(name, dtypes.FLOATS, heavy=False) for name in ROUNDING_OPS.split()),
]
