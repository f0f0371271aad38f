"""Mixtures of experts, with weights in the GGUF block formats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._experts import ROWS
from propolis_rocm_kernels._experts import SHAPE
from propolis_rocm_kernels._experts import SIDE
from propolis_rocm_kernels._experts import Launch
from propolis_rocm_kernels._experts import supports
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._kinds import KINDS
from propolis_rocm_kernels._scratch import BYTES
from propolis_rocm_kernels.ops_moe import GROUP


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("moe_quantized")

_TILES: Final = {
    d: MODULE.kernel(f"tile{SIDE}_{d.name}", ("PPPPP", SHAPE, "i"))
    for d in sorted(dtypes.FLOATS, key=str)
}
_ROWS: Final = {
    w: MODULE.kernel(f"rows{ROWS}_{w.name}", ("PPPPP", SHAPE, "qi"))
    for w in sorted(dtypes.BLOCKS, key=str)
}


def moe_qmatmul(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, /) -> None:
    """``moe_linear`` with weights and activations as they are."""
    if out.numel == 0:
        return
    expert, row = (s // w.dtype.block_size * w.dtype.block_bytes for s in w.strides[:2])
    launch = Launch(GROUP, out, x, w, experts, (expert, row, 1))
    if launch.few() and launch.in_runs() and x.dtype is not dtypes.f64:
        launch(_ROWS[w.dtype], ROWS, (KINDS[x.dtype],))
    else:
        launch(_TILES[x.dtype], SIDE, (w.dtype.ggml_type or 0,))


OPS: Final = [
    replace(
        implementation(
            "moe_qmatmul",
            moe_qmatmul,
            {"x": dtypes.FLOATS, "w": dtypes.BLOCKS},
            in_place=False,
            workspace=BYTES,
        ),
        supports=supports,
    )
]
