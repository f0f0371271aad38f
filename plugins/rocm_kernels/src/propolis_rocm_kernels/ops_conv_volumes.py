"""Convolutions of videos."""

from __future__ import annotations

from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._convolve import LARGE
from propolis_rocm_kernels._convolve import PLANES
from propolis_rocm_kernels._convolve import SHAPE
from propolis_rocm_kernels._convolve import Kernels
from propolis_rocm_kernels._convolve import convolution_op
from propolis_rocm_kernels._kernels import Module


MODULE: Final = Module("conv_volumes")

_TAKEN: Final = ("PPPP", SHAPE, PLANES, "q3")
_KERNELS: Final = Kernels(
    tiles={
        d: {s: MODULE.kernel(f"tile{s}_{d.name}", _TAKEN) for s in LARGE.get(d, (64,))}
        for d in dtypes.FLOATS
    },
    direct={d: {4: MODULE.kernel(f"direct4_{d.name}", (*_TAKEN, "q"))} for d in dtypes.FLOATS},
    gather={},
)

OPS: Final = [convolution_op("conv3d", _KERNELS)]
