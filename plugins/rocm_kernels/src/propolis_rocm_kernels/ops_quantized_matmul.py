"""Products with weights in the block formats of 32."""

from __future__ import annotations

from typing import Final

from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._qmatmul import qmatmul_of


MODULE: Final = Module("quantized_matmul")

OPS: Final = qmatmul_of(MODULE, block_size=32)
