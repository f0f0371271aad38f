"""The two libraries of AMD's that products can be had from."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis.errors import DeviceError
from propolis_rocm_blas import _ffi
from propolis_rocm_blas import _ffi_lt
from propolis_rocm_blas import handle
from propolis_rocm_blas import handle_lt
from propolis_rocm_hip import machine_code


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from pathlib import Path

    from propolis import DType
    from propolis_rocm_blas.multiplier import Multiplier


class Library(NamedTuple):
    """
    One of them, loaded or not.

    Attributes:
        name: what people call it.
        path: gives its file; raises a DeviceError where there is none.
        make: the class of its handle.
        kinds: the dtypes that it multiplies.
        repeats: whether equal inputs are known to give equal bits.
        files: where it keeps its machine code.
        install: what to install where it is lacking.
    """

    name: str
    path: Callable[[], Path]
    make: type[Multiplier]
    kinds: Collection[DType]
    repeats: bool
    files: machine_code.Files
    install: str

    def is_there(self) -> bool:
        """Whether it has a file, loadable or not."""
        try:
            self.path()
        except DeviceError:
            return False
        return True


ROCBLAS: Final = Library(
    "rocBLAS",
    _ffi.path,
    handle.Handle,
    tuple(handle.NUMBERS),
    repeats=True,
    files=machine_code.ROCBLAS,
    install=_ffi.INSTALL,
)
HIPBLASLT: Final = Library(
    "hipBLASLt",
    _ffi_lt.path,
    handle_lt.HandleLt,
    tuple(handle_lt.NUMBERS),
    repeats=False,  # it has no setting for that, and promises nothing
    files=machine_code.HIPBLASLT,
    install=_ffi_lt.INSTALL,
)
ALL: Final = {library.name.lower(): library for library in (ROCBLAS, HIPBLASLT)}
"""By the name that the setting ``blas`` has for them."""

__all__ = ["ALL", "HIPBLASLT", "ROCBLAS", "Library"]
