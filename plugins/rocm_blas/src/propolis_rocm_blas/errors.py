"""What the libraries' status codes mean to us: the class of our error, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis.errors import DeviceError
from propolis.errors import PluginError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis.errors import PropolisError

_OURS: Final = "a bug in propolis-rocm-blas: report it"


class Statuses(NamedTuple):
    """
    A library's status codes.

    Attributes:
        prefix: of their names.
        names: by number.
        served: the call did what it was asked.
        transient: the device's own trouble, which may be over at the next call; what helps.
        lasting: what the library cannot do; what helps.
    """

    prefix: str
    names: tuple[str, ...]
    served: frozenset[int]
    transient: Mapping[int, str]
    lasting: Mapping[int, str]

    def error(self, device: str, call: str, status: int) -> PropolisError:
        """
        Our error for a call that failed.

        Args:
            device: the device's id.
            call: the function, and what it was asked for.
            status: the library's.

        >>> ROCBLAS.error("rocm:0", "rocblas_gemm_ex of f16, 8 x 8 x 8", 4)
        PluginError('rocm:0: rocblas_gemm_ex of f16, 8 x 8 x 8: rocblas_status_invalid_size (4)...')
        """
        name = self.names[status] if 0 <= status < len(self.names) else "unknown"
        said = f"{device}: {call}: {self.prefix}{name} ({status})"
        if status in self.transient:
            return DeviceError(f"{said}; {self.transient[status]}")
        return PluginError(f"{said}; {self.lasting.get(status, _OURS)}")


def _lacks(library: str) -> str:
    return (
        f"this {library} lacks it: install a newer one, or one that is built for this GPU; other "
        "plugins serve it until then"
    )


def _memory(library: str) -> str:
    return f"{library} has too little memory: use a smaller model, or end what else uses the GPU"


def _within(library: str, variable: str) -> str:
    return f"{library} failed within: {variable} logs calls; `propolis doctor` looks at the library"


ROCBLAS: Final = Statuses(
    "rocblas_status_",
    (
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
    ),
    served=frozenset({0, 7}),  # well, or more slowly than it might
    transient={
        5: _memory("rocBLAS"),
        6: _within("rocBLAS", "ROCBLAS_LAYER=1"),
        13: "it found NaN or infinity, which ROCBLAS_CHECK_NUMERICS asks it to refuse: unset that",
    },
    lasting=dict.fromkeys((2, 14, 15), _lacks("rocBLAS")),
)
"""``rocblas_status``."""

HIPBLASLT: Final = Statuses(
    "HIPBLAS_STATUS_",
    (
        "SUCCESS",
        "NOT_INITIALIZED",
        "ALLOC_FAILED",
        "INVALID_VALUE",
        "MAPPING_ERROR",
        "EXECUTION_FAILED",
        "INTERNAL_ERROR",
        "NOT_SUPPORTED",
        "ARCH_MISMATCH",
        "HANDLE_IS_NULLPTR",
        "INVALID_ENUM",
        "UNKNOWN",
    ),
    served=frozenset({0}),
    transient={
        2: _memory("hipBLASLt"),
        **dict.fromkeys((5, 6), _within("hipBLASLt", "HIPBLASLT_LOG_LEVEL=2")),
    },
    lasting=dict.fromkeys((7, 8), _lacks("hipBLASLt")),
)
"""``hipblasStatus_t``."""

__all__ = ["HIPBLASLT", "ROCBLAS", "Statuses"]
