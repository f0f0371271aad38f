"""What rocBLAS's status codes mean to us: the class of our error, and the remedy."""

from __future__ import annotations

from typing import Final

from propolis.errors import DeviceError
from propolis.errors import PluginError
from propolis.errors import PropolisError


NAMES: Final = (
    "success",
    "invalid_handle",
    "not_implemented",
    "invalid_pointer",
    "invalid_size",
    "memory_error",
    "internal_error",
    "perf_degraded",
    "size_query_mismatch",
    "size_increased",
    "size_unchanged",
    "invalid_value",
    "continue",
    "check_numerics_fail",
    "excluded_from_build",
    "arch_mismatch",
)
"""Of ``rocblas_status``, by number."""

SERVED: Final = frozenset({0, 7})
"""The call did what it was asked: well, or more slowly than it might."""

_BUILD: Final = (
    "this rocBLAS lacks it: install a newer one, or one that is built for this GPU; other plugins "
    "serve it until then"
)
# The device's own trouble, which may be over at the next call.
_TRANSIENT: Final = {
    5: "rocBLAS has too little memory: use a smaller model, or end what else uses the GPU",
    6: "rocBLAS failed within: ROCBLAS_LAYER=1 logs calls; `propolis doctor` looks at the library",
    13: "it found NaN or infinity, which ROCBLAS_CHECK_NUMERICS asks it to refuse: unset that",
}
_LASTING: Final = {2: _BUILD, 14: _BUILD, 15: _BUILD}
_OURS: Final = "a bug in propolis-rocm-blas: report it"


def error_for(device: str, call: str, status: int) -> PropolisError:
    """
    Our error for a call that failed.

    Args:
        device: the device's id.
        call: the function, and what it was asked for.
        status: the ``rocblas_status``.

    >>> error_for("rocm:0", "rocblas_gemm_ex of f16, 8 x 8 x 8", 4)
    PluginError('rocm:0: rocblas_gemm_ex of f16, 8 x 8 x 8: rocblas_status_invalid_size (4); a ...')
    """
    name = NAMES[status] if 0 <= status < len(NAMES) else "unknown"
    said = f"{device}: {call}: rocblas_status_{name} ({status})"
    if status in _TRANSIENT:
        return DeviceError(f"{said}; {_TRANSIENT[status]}")
    return PluginError(f"{said}; {_LASTING.get(status, _OURS)}")


__all__ = ["NAMES", "SERVED", "error_for"]
