"""Convolutions of rows and images, and their transposes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._convolution import too_far
from propolis_rocm_kernels._convolve import GATHERED
from propolis_rocm_kernels._convolve import LARGE
from propolis_rocm_kernels._convolve import SHAPE
from propolis_rocm_kernels._convolve import Kernels
from propolis_rocm_kernels._convolve import convolution_op
from propolis_rocm_kernels._convolve import convolve
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor
    from propolis.ops.conv import Sizes

MODULE: Final = Module("conv")

_TAKEN: Final = ("PPPP", SHAPE, "q3")
_KERNELS: Final = Kernels(
    tiles={
        d: {s: MODULE.kernel(f"tile{s}_{d.name}", _TAKEN) for s in LARGE.get(d, (64,))}
        for d in dtypes.FLOATS
    },
    direct={
        d: {n: MODULE.kernel(f"direct{n}_{d.name}", (*_TAKEN, "q")) for n in (1, 4)}
        for d in dtypes.FLOATS
    },
    gather={d: MODULE.kernel(f"gather{GATHERED}_{d.name}", _TAKEN) for d in dtypes.FLOATS},
)


def _conv_transpose(name: str) -> OpImpl:
    def run(
        out: Tensor,
        x: Tensor,
        w: Tensor,
        /,
        bias: Tensor | None = None,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> None:
        del output_padding  # the shape of the output says it
        attributes = stride, padding, dilation
        convolve(_KERNELS, out, x, w, bias, attributes, groups, transposed=True)

    def supports(
        x: Tensor,
        w: Tensor,
        /,
        bias: Tensor | None = None,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> str | None:
        del bias, groups
        attributes = stride, padding, dilation
        return too_far(x.shape, w.shape, attributes, transposed=True, more=output_padding)

    made = implementation(name, run, dtypes.FLOATS, in_place=False)
    return replace(made, supports=supports)


OPS: Final = [
    convolution_op("conv1d", _KERNELS),
    convolution_op("conv2d", _KERNELS),
    _conv_transpose("conv_transpose1d"),
    _conv_transpose("conv_transpose2d"),
]
