"""Mixtures of experts, with plain weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._experts import ROWS
from propolis_rocm_kernels._experts import SHAPE
from propolis_rocm_kernels._experts import SIDE
from propolis_rocm_kernels._experts import Launch
from propolis_rocm_kernels._experts import supports
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._product import in_packs
from propolis_rocm_kernels._scratch import BYTES


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("moe")

GROUP: Final = MODULE.kernel("group", "PPPqqqqq")
"""Puts pairs of a token and an expert in the order of experts."""

_FLOATS: Final = sorted(dtypes.FLOATS, key=str)
_GATE: Final = {d: MODULE.kernel(f"gate_{d.name}", "PPPqqqqqi") for d in _FLOATS}
_TILES: Final = {d: MODULE.kernel(f"tile{SIDE}_{d.name}", ("PPPPP", SHAPE)) for d in _FLOATS}
_ROWS: Final = {d: MODULE.kernel(f"rows{ROWS}_{d.name}", ("PPPPP", SHAPE, "q")) for d in _FLOATS}


def moe_gate(
    weights: Tensor,
    experts: Tensor,
    logits: Tensor,
    /,
    k: int,
    *,
    renormalize: bool = True,
) -> None:
    """Softmax over all experts; the likeliest, and their weights."""
    if weights.numel == 0:
        return
    tokens, count = logits.shape
    device: Any = logits.device
    blocks = min(-(-tokens // (BLOCK // device.warp_size)), MAX_BLOCKS)
    tensors = pointer(weights), pointer(experts), pointer(logits)
    sizes = tokens, count, k, *logits.strides
    _GATE[logits.dtype](device, blocks, *tensors, *sizes, int(renormalize))


def moe_linear(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, /) -> None:
    """``x @ w[expert].T`` for each expert of each token; zeros where there is no such expert."""
    if out.numel == 0:
        return
    expert, row, step = w.strides
    if x.shape[2] <= 1:
        step = 1
    launch = Launch(GROUP, out, x, w, experts, (expert, 0 if w.shape[1] == 1 else row, step))
    dtype, at = w.dtype, pointer(w)
    whole = step == 1 and in_packs(at, dtype, row) and in_packs(at, dtype, expert)
    if launch.few() and launch.in_runs() and whole and x.shape[2] % RUN == 0:
        launch(_ROWS[dtype], ROWS)
    else:
        launch(_TILES[dtype], SIDE)


OPS: Final = [
    implementation("moe_gate", moe_gate, dtypes.FLOATS, in_place=False),
    replace(
        implementation("moe_linear", moe_linear, dtypes.FLOATS, in_place=False, workspace=BYTES),
        supports=supports,
    ),
]
