"""Which kernels there are, and what Python and their sources share."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis import dtypes


if TYPE_CHECKING:
    from propolis.dtypes import DType

ARCHS: Final = ("gfx90a", "gfx942")
"""What Composable Kernel's forward kernels have matrix instructions of: CDNA 2 and 3."""

SIMULATED: Final = ("hipsim32", "hipsim64")
"""The simulator's, for which a plain kernel with the same ABI is compiled at first use."""

SIMULATED_CUDA: Final = "sm_"
"""How the simulator names a card of its cuda flavour, which compiles that kernel too."""

BLOCK: Final = 256
"""Threads of a block."""

TILE: Final = 128
"""Queries of a block."""

HEAD_DIMS: Final = (64, 128, 256)
"""Elements of a head; shorter heads are padded."""

VALUES: Final = 128
"""The most elements of a value that a block sums: sums of 256 spill to memory."""

DTYPES: Final = {dtypes.f16: "ck_tile::fp16_t", dtypes.bf16: "ck_tile::bf16_t"}
"""Element types, with Composable Kernel's name for each."""

ARGUMENTS: Final = "9P7i2f20i4x"
"""``propolis_fmha_args`` of native/propolis_fmha.h in the notation of :mod:`struct`."""

SIZE: Final = struct.calcsize(ARGUMENTS)


class Instance(NamedTuple):
    """
    A kernel.

    Attributes:
        dtype: of queries, keys, values and results.
        head_dim: the most elements of a head.
        softcap: whether scores are capped.
    """

    dtype: DType
    head_dim: int
    softcap: bool

    @property
    def name(self) -> str:
        """Of its module and of the kernel in it."""
        return f"fmha_{self.dtype.name}_{self.head_dim}" + "_softcap" * self.softcap

    @property
    def defines(self) -> dict[str, str | int]:
        """What native/fmha.hip is compiled with."""
        return {
            "FMHA_NAME": self.name,
            "FMHA_DTYPE": DTYPES[self.dtype],
            "FMHA_HEAD_DIM": self.head_dim,
            "FMHA_VALUES": min(self.head_dim, VALUES),
            "FMHA_SOFTCAP": int(self.softcap),
            "FMHA_BLOCK": BLOCK,
            "FMHA_TILE": TILE,
            "FMHA_SIZE": SIZE,
        }


INSTANCES: Final = tuple(
    Instance(dtype, head_dim, softcap)
    for dtype in DTYPES
    for head_dim in HEAD_DIMS
    for softcap in (False, True)
)
