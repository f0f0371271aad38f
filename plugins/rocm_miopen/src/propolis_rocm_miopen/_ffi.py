"""
MIOpen as the plugin calls it: which functions, and the library that has them.

The numbers are those of ``miopen.h``.  Of the convolution's functions, those of immediate mode take
the weights before the input; finding takes them behind it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_hip import vendor


if TYPE_CHECKING:
    from pathlib import Path

SIGNATURES: Final = {
    "miopenCreateWithStream": "iPP",
    "miopenDestroy": "iP",
    "miopenGetVersion": "iPPP",
    "miopenCreateTensorDescriptor": "iP",
    "miopenSetTensorDescriptor": "iPiiPP",
    "miopenDestroyTensorDescriptor": "iP",
    "miopenCreateConvolutionDescriptor": "iP",
    "miopenInitConvolutionNdDescriptor": "iPiPPPi",
    "miopenSetConvolutionGroupCount": "iPi",
    "miopenSetTransposeConvOutputPadding": "iPii",
    "miopenSetConvolutionAttribute": "iPii",
    "miopenSetConvolutionFindMode": "iPi",
    "miopenDestroyConvolutionDescriptor": "iP",
    "miopenConvolutionForwardGetSolutionCount": "iPPPPPP",
    "miopenConvolutionForwardGetSolution": "iPPPPPQPP",
    "miopenConvolutionForwardGetSolutionWorkspaceSize": "iPPPPPQP",
    "miopenConvolutionForwardCompileSolution": "iPPPPPQ",
    "miopenConvolutionForwardImmediate": "iPPPPPPPPPQQ",
    "miopenConvolutionForwardBias": "iPPPPPPP",
    "miopenConvolutionForwardGetWorkSpaceSize": "iPPPPPP",
    "miopenFindConvolutionForwardAlgorithm": "iPPPPPPPPiPPPQ?",
}
"""Result and arguments, in the letters of :data:`propolis_rocm_hip.vendor.LETTERS`."""

INSTALL: Final = (
    "install MIOpen of the same ROCm as HIP (miopen-hip in AMD's packages, libmiopen1 in Debian's, "
    "pip's rocm[libraries])"
)

F16: Final = 0
F32: Final = 1
BF16: Final = 5
CONVOLUTION: Final = 0
TRANSPOSE: Final = 1
DETERMINISTIC: Final = 1
FIND_NORMALLY: Final = 1

GEMM: Final = 0
FFT: Final = 2
WINOGRAD: Final = 3

ALGORITHMS: Final = {
    GEMM: "GEMM",
    1: "direct",
    FFT: "FFT",
    WINOGRAD: "Winograd",
    5: "implicit GEMM",
}
"""``miopenConvFwdAlgorithm_t``; transposed convolutions have the same numbers."""

DEFAULTS: Final = {"MIOPEN_FIND_MODE": "FAST"}
"""What is set unless the user has: finding measures every solution there is, for minutes each."""


class Solution(ctypes.Structure):
    """``miopenConvSolution_t``."""

    _fields_ = (
        ("time", ctypes.c_float),
        ("workspace_size", ctypes.c_size_t),
        ("solution_id", ctypes.c_uint64),
        ("algorithm", ctypes.c_int),
    )


class Measured(ctypes.Structure):
    """``miopenConvAlgoPerf_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
    )


@cache
def path() -> Path:
    """
    The library's file, which is not loaded.

    Raises:
        DeviceError: there is no HIP, or no MIOpen in its tree.
    """
    return vendor.find("MIOpen", ("libMIOpen.so.1",), INSTALL)


@cache
def library() -> vendor.Library:
    """
    The library, loaded; it reads its variables when it is used first.

    Raises:
        DeviceError: there is no HIP, no MIOpen in its tree, or it cannot be loaded.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    return vendor.Library(path(), SIGNATURES, INSTALL)


def version() -> str:
    """
    The version that the library says it is, ``"3.4.0"``.

    Raises:
        DeviceError: there is no library.
    """
    parts = [ctypes.c_size_t() for _ in range(3)]
    library().function("miopenGetVersion")(*map(ctypes.addressof, parts))
    return ".".join(str(part.value) for part in parts)


__all__ = [
    "ALGORITHMS",
    "BF16",
    "CONVOLUTION",
    "DEFAULTS",
    "DETERMINISTIC",
    "F16",
    "F32",
    "FFT",
    "FIND_NORMALLY",
    "GEMM",
    "INSTALL",
    "SIGNATURES",
    "TRANSPOSE",
    "WINOGRAD",
    "Measured",
    "Solution",
    "library",
    "path",
    "version",
]
