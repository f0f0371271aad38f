"""
hipBLASLt as the plugin calls it: which functions, and the library that has them.

The numbers are those of ``hipblaslt.h``, ``hipblas-common.h`` and ``hip/library_types.h``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_hip import _ffi as hip
from propolis_rocm_hip import vendor


if TYPE_CHECKING:
    from pathlib import Path

_SET: Final = "iPiPQ"  # descriptor, attribute, value, its bytes
SIGNATURES: Final = {
    "hipblasLtCreate": "iP",
    "hipblasLtDestroy": "iP",
    "hipblasLtMatrixLayoutCreate": "iPiQQq",
    "hipblasLtMatrixLayoutDestroy": "iP",
    "hipblasLtMatrixLayoutSetAttribute": _SET,
    "hipblasLtMatmulDescCreate": "iPii",
    "hipblasLtMatmulDescDestroy": "iP",
    "hipblasLtMatmulDescSetAttribute": _SET,
    "hipblasLtMatmulPreferenceCreate": "iP",
    "hipblasLtMatmulPreferenceDestroy": "iP",
    "hipblasLtMatmulPreferenceSetAttribute": _SET,
    "hipblasLtMatmulAlgoGetHeuristic": f"i{7 * 'P'}iPP",
    "hipblasLtMatmul": f"i{14 * 'P'}QP",
}
"""Result and arguments, in the letters of :data:`propolis_rocm_hip.vendor.LETTERS`."""

INSTALL: Final = (
    "install hipBLASLt of the same ROCm as HIP (hipblaslt in AMD's packages, libhipblaslt1 in "
    "Debian's, pip's rocm[libraries])"
)

PLAIN: Final = 111
TRANSPOSED: Final = 112
F32: Final = 0
F16: Final = 2
BF16: Final = 14
SUMS_IN_F32: Final = 2
BATCHES: Final = 0
STEP: Final = 1
TRANSPOSE_FIRST: Final = 0
TRANSPOSE_SECOND: Final = 1
MOST_WORKSPACE: Final = 1

_HIP_OF_1: Final = 7
"""The major version of HIP whose hipBLASLt is 1; Debian has that one with HIP 6, too."""


class Algorithm(ctypes.Structure):
    """``hipblasLtMatmulAlgo_t``."""

    _fields_ = (("data", ctypes.c_uint8 * 16), ("max_workspace_bytes", ctypes.c_size_t))


class Found(ctypes.Structure):
    """``hipblasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int32),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int32 * 4),
    )


@cache
def path() -> Path:
    """
    The library's file, which is not loaded.

    Raises:
        DeviceError: there is no HIP, or no hipBLASLt in its tree.
    """
    sonames = ["libhipblaslt.so.1", "libhipblaslt.so.0"]
    newest = hip.version()[0] >= _HIP_OF_1
    return vendor.find("hipblaslt", sonames if newest else sonames[::-1], INSTALL)


@cache
def library() -> vendor.Library:
    """
    The library, loaded.

    Raises:
        DeviceError: there is no HIP, no hipBLASLt in its tree, or it cannot be loaded.
    """
    return vendor.Library(path(), SIGNATURES, INSTALL)


__all__ = [
    "BATCHES",
    "BF16",
    "F16",
    "F32",
    "INSTALL",
    "MOST_WORKSPACE",
    "PLAIN",
    "SIGNATURES",
    "STEP",
    "SUMS_IN_F32",
    "TRANSPOSED",
    "TRANSPOSE_FIRST",
    "TRANSPOSE_SECOND",
    "Algorithm",
    "Found",
    "library",
    "path",
]
