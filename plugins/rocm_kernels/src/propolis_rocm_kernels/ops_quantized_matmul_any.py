"""Products of f64 and f8 activations with weights in any block format."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._product import Kernels
from propolis_rocm_kernels._qmatmul import launch


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("quantized_matmul_any")

_ARGUMENTS: Final = "PPP" + 8 * "q"
_KERNELS: Final = {
    d: Kernels(
        {64: MODULE.kernel(f"tile64_{d.name}", f"{_ARGUMENTS}2")},
        {m: MODULE.kernel(f"rows{m}_{d.name}", f"{_ARGUMENTS}q2") for m in rows},
    )
    for d, rows in ((dtypes.f64, ()), (dtypes.f8e4m3, (4,)), (dtypes.f8e5m2, (4,)))
}


def qmatmul(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, with weights and activations as they are."""
    if out.numel:
        launch(_KERNELS[x.dtype], out, x, w, w.dtype.ggml_type or 0)


OPS: Final = [
    implementation("qmatmul", qmatmul, {"x": tuple(_KERNELS), "w": dtypes.BLOCKS}, in_place=False)
]
