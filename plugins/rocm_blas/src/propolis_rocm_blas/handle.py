"""A device's rocBLAS handle: its stream, its workspace, and the products that it queues."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis import dtypes
from propolis_rocm_blas import _ffi
from propolis_rocm_blas.errors import ROCBLAS
from propolis_rocm_blas.multiplier import Multiplier


if TYPE_CHECKING:
    from propolis_rocm_blas.multiplier import Product
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_hip.vendor import Library


class Numbers(NamedTuple):
    """
    How rocBLAS calls a dtype.

    Attributes:
        kind: of the matrices.
        compute: of the sums, and of alpha and beta.
        one: where a 1 of that type lies on the host.
        zero: and a 0.
    """

    kind: int
    compute: int
    one: int
    zero: int


_SCALARS: Final = {
    _ffi.F32: (ctypes.c_float(1), ctypes.c_float(0)),
    _ffi.F64: (ctypes.c_double(1), ctypes.c_double(0)),
}
NUMBERS: Final = {
    dtype: Numbers(kind, compute, *map(ctypes.addressof, _SCALARS[compute]))
    for dtype, kind, compute in (
        (dtypes.f64, _ffi.F64, _ffi.F64),
        (dtypes.f32, _ffi.F32, _ffi.F32),
        (dtypes.f16, _ffi.F16, _ffi.F32),
        (dtypes.bf16, _ffi.BF16, _ffi.F32),
    )
}
"""The dtypes that rocBLAS computes as :mod:`propolis.ops` asks for: sums in f32 or wider."""


class Handle(Multiplier):
    """rocBLAS on one device."""

    library_name = "rocBLAS"
    statuses = ROCBLAS

    def __init__(self, device: RocmDevice) -> None:
        """
        Make the handle, with its memory.

        Args:
            device: keeps it (:meth:`RocmDevice.keep`).

        Raises:
            DeviceError: there is no rocBLAS, it refuses the device, or memory is lacking.
        """
        library = _ffi.library()
        self._gemm = library.function("rocblas_gemm_ex")
        self._gemms = library.function("rocblas_gemm_strided_batched_ex")
        super().__init__(device, library)
        context = self._context
        with context.lock:
            context.make_current()
            made = ctypes.c_void_p()
            self._ask("rocblas_create_handle", ctypes.addressof(made))
            self._value = handle = int(made.value or 0)
            weakref.finalize(self, _destroy, library, handle, os.getpid())
            self._ask("rocblas_set_stream", handle, context.stream)
            self._ask("rocblas_set_pointer_mode", handle, _ffi.POINTERS_ON_HOST)
            # Sums in whatever order threads arrive would differ from run to run.
            self._ask("rocblas_set_atomics_mode", handle, _ffi.ATOMICS_NOT_ALLOWED)
            workspace = self._workspace.ptr, self._workspace_bytes
            self._ask("rocblas_set_workspace", handle, *workspace)

    def _queue(self, product: Product, first: int, second: int, out: int, *, onto: bool) -> None:
        dtype, (m, n, k), x, y, d, batches = product
        kind, compute, one, zero = NUMBERS[dtype]
        beta = one if onto else zero
        operations = _operation(x.transposed), _operation(y.transposed)
        if batches == 1:
            status = self._gemm(
                *(self._value, *operations, m, n, k),
                *(one, first, kind, x.leading, second, kind, y.leading),
                *(beta, out, kind, d.leading, out, kind, d.leading),
                *(compute, _ffi.STANDARD, 0, 0),
            )
        else:
            status = self._gemms(
                *(self._value, *operations, m, n, k),
                *(one, first, kind, x.leading, x.step, second, kind, y.leading, y.step),
                *(beta, out, kind, d.leading, d.step, out, kind, d.leading, d.step),
                *(batches, compute, _ffi.STANDARD, 0, 0),
            )
        if status not in ROCBLAS.served:
            name = "gemm_strided_batched_ex" if batches > 1 else "gemm_ex"
            self._expect(f"rocblas_{name} of {product}", status)


def _operation(transposed: bool) -> int:
    return _ffi.TRANSPOSED if transposed else _ffi.PLAIN


def _destroy(library: Library, handle: int, process: int) -> None:
    """Give a handle back, save in a forked process, which has none."""
    if os.getpid() == process:
        library.function("rocblas_destroy_handle")(handle)


__all__ = ["NUMBERS", "Handle"]
