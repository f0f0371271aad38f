"""Element by element, of two tensors of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor

_NUMBERS: Final = {"add": 0, "sub": 1, "mul": 2, "silu_mul": 3, "gelu_erf_mul": 4}


def _same_shape(a: Tensor, b: Tensor, /) -> str | None:
    """None, or why not: one is broadcast."""
    return None if a.shape == b.shape else "an operand is broadcast"


def _run(op: str, out: Tensor, x: Tensor, y: Tensor) -> None:
    arrays = out.array, x.array, y.array
    native().pairwise(_NUMBERS[op], *arrays, KINDS[out.dtype], out.numel, out.device.threads)


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
    implementation("silu_mul", silu_mul, in_place=True),
    implementation("gelu_erf_mul", gelu_erf_mul, in_place=True),
]
