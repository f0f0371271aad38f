"""Element by element, of two tensors of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import row_step
from propolis_cpu_native._implementation import strided_implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor

NUMBERS: Final = {"add": 0, "sub": 1, "mul": 2, "silu_mul": 3, "gelu_erf_mul": 4}


def _same_shape(a: Tensor, b: Tensor, /) -> str | None:
    """None, or why not: one is broadcast."""
    return None if a.shape == b.shape else "an operand is broadcast"


def _in_rows(gate: Tensor, up: Tensor, /) -> str | None:
    """None, or why not: one's rows lie apart by more than one distance."""
    if gate.shape and row_step(gate) is not None and row_step(up) is not None:
        return None
    return "rows do not lie one distance apart"


def _run(op: str, out: Tensor, x: Tensor, y: Tensor) -> None:
    flat = x.is_contiguous and y.is_contiguous
    width = out.numel if flat else out.shape[-1]
    steps = (width, width) if flat else (row_step(x), row_step(y))
    arrays = out.array, x.array, steps[0], y.array, steps[1]
    kind, rows = KINDS[out.dtype], out.numel // max(width, 1)
    native().pairwise(NUMBERS[op], *arrays, kind, rows, width, out.device.threads)


def add(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a + b``."""
    _run("add", out, a, b)


def sub(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a - b``."""
    _run("sub", out, a, b)


def mul(out: Tensor, a: Tensor, b: Tensor, /) -> None:
    """``a * b``."""
    _run("mul", out, a, b)


def silu_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    """``silu(gate) * up``."""
    _run("silu_mul", out, gate, up)


def gelu_erf_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    """``gelu_erf(gate) * up``."""
    _run("gelu_erf_mul", out, gate, up)


OPS: Final = [
    *(
        implementation(fn.__name__, fn, supports=_same_shape, in_place=True)
        for fn in (add, sub, mul)
    ),
    *(
        build(fn.__name__, fn, in_place=True, supports=supports)
        for fn in (silu_mul, gelu_erf_mul)
        for build, supports in ((implementation, None), (strided_implementation, _in_rows))
    ),
]
