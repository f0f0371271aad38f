"""
rocBLAS as the plugin calls it: which functions, and the library that has them.

The numbers are those of ``rocblas-types.h``.  The mixed gemv functions (``hshgemv`` and its
like) are left alone: they round each product to 16 bits before they add it.
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

_SIZES: Final = "iPiiiii"  # handle, what is transposed, m, n, k
SIGNATURES: Final = {
    "rocblas_create_handle": "iP",
    "rocblas_destroy_handle": "iP",
    "rocblas_set_stream": "iPP",
    "rocblas_set_pointer_mode": "iPi",
    "rocblas_set_atomics_mode": "iPi",
    "rocblas_set_workspace": "iPPQ",
    "rocblas_status_to_string": "Pi",
    "rocblas_get_version_string": "iPQ",
    "rocblas_get_version_string_size": "iP",
    "rocblas_gemm_ex": f"{_SIZES}PPiiPiiPPiiPiiiiiI",
    "rocblas_gemm_strided_batched_ex": f"{_SIZES}PPiiqPiiqPPiiqPiiqiiiiI",
}
"""Result and arguments, in the letters of :data:`propolis_rocm_hip.vendor.LETTERS`."""

INSTALL: Final = (
    "install rocBLAS of the same ROCm as HIP (rocblas in AMD's packages, librocblas4 or 5 in "
    "Debian's, pip's rocm[libraries])"
)

PLAIN: Final = 111
TRANSPOSED: Final = 112
POINTERS_ON_HOST: Final = 0
ATOMICS_NOT_ALLOWED: Final = 0
STANDARD: Final = 0
F16: Final = 150
F32: Final = 151
F64: Final = 152
BF16: Final = 168

_MAJOR_OF_HIP: Final = 7
"""The major version of HIP whose rocBLAS is 5; that of each release before is one lower."""


def expected_major() -> int:
    """The major version of the rocBLAS that is released with the HIP that is loaded."""
    return hip.version()[0] - _MAJOR_OF_HIP + 5


@cache
def path() -> Path:
    """
    The library's file, which is not loaded.

    Raises:
        DeviceError: there is no HIP, or no rocBLAS in its tree.
    """
    sonames = sorted(
        ("librocblas.so.5", "librocblas.so.4"), key=lambda s: not s.endswith(str(expected_major()))
    )
    return vendor.find("rocblas", sonames, INSTALL)


@cache
def library() -> vendor.Library:
    """
    The library, loaded.

    Raises:
        DeviceError: there is no HIP, no rocBLAS in its tree, or it cannot be loaded.
    """
    return vendor.Library(path(), SIGNATURES, INSTALL)


def version() -> str:
    """
    The version that the library says it is, ``"4.4.1.<commit>"``; empty where it says none.

    A distribution's build may know no commit, and is ``"4.4.1"``.

    Raises:
        DeviceError: there is no library.
    """
    size = ctypes.c_size_t()
    library().function("rocblas_get_version_string_size")(ctypes.addressof(size))
    text = ctypes.create_string_buffer(max(size.value, 1))
    library().function("rocblas_get_version_string")(ctypes.addressof(text), len(text))
    return text.value.decode(errors="replace").rstrip(".")


__all__ = [
    "ATOMICS_NOT_ALLOWED",
    "BF16",
    "F16",
    "F32",
    "F64",
    "INSTALL",
    "PLAIN",
    "POINTERS_ON_HOST",
    "SIGNATURES",
    "STANDARD",
    "TRANSPOSED",
    "expected_major",
    "library",
    "path",
    "version",
]
