"""Group normalisation."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._scalars import letter
from propolis_rocm_kernels._scratch import BYTES
from propolis_rocm_kernels._scratch import PARTIALS
from propolis_rocm_kernels._scratch import scratch


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor

MODULE: Final = Module("norm_group")

# Elements that are worth a block of their own.
_WORTH: Final = 4096
_LARGEST: Final = 2**32 - 1
_MOMENTS: Final = {d: MODULE.kernel(f"moments_{d.name}", "PPqqq") for d in dtypes.FLOATS}


def _too_large(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, /, groups: int, eps: float = 1e-5
) -> str | None:
    del weight, bias, eps
    if x.shape[0] * groups > PARTIALS:
        return f"{x.shape[0]} x {groups} groups; supported: {PARTIALS} in all"
    if x.numel > _LARGEST * x.shape[0] * groups:
        return f"groups of more than {_LARGEST} elements"
    return None


def _implement(name: str) -> OpImpl:
    kernels = {
        d: MODULE.kernel(f"{name}_{d.name}", "PPPPPqqqqq" + letter(d)) for d in dtypes.FLOATS
    }

    def run(
        out: Tensor,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        /,
        groups: int,
        eps: float = 1e-5,
    ) -> None:
        layout, dtype = x.layout, x.dtype
        device: Any = out.device
        if layout.numel == 0:
            return
        rows = layout.shape[0] * groups
        length = layout.numel // rows
        wanted = -(-8 * device.compute_units // rows)
        chunks = max(1, min(wanted, -(-length // _WORTH), PARTIALS // rows))
        chunk = -(-length // (chunks * PACK_BYTES)) * PACK_BYTES if chunks > 1 else length
        chunks = -(-length // chunk)
        memory, at = scratch(device), pointer(x)
        _MOMENTS[dtype](device, rows * chunks, memory, at, length, chunk, chunks)
        kernels[dtype](
            device,
            rows * chunks,
            *(pointer(out), memory, at),
            *(0 if t is None else pointer(t) for t in (weight, bias)),
            *(length, chunk, chunks, groups, math.prod(layout.shape[2:])),
            eps,
        )

    made = implementation(name, run, dtypes.FLOATS, in_place=False, workspace=BYTES)
    return dataclasses.replace(made, strided=False, supports=_too_large)


OPS: Final = [_implement("group_norm"), _implement("group_norm_silu")]
