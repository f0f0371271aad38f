"""
A device's rocBLAS handle: its stream, its workspace, and the products that it queues.

A handle is no thread's own: the context's lock keeps two from using it at once, and others' work
out of a step that is being captured.  All memory that rocBLAS needs is given to it when the handle
is made, so that no product allocates.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

import numpy as np

from propolis import dtypes
from propolis.errors import DeviceError
from propolis.errors import OutOfMemoryError
from propolis_rocm_blas import _ffi
from propolis_rocm_blas.errors import SERVED
from propolis_rocm_blas.errors import error_for


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Storage
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_hip.vendor import Library

ONES: Final = 4096
"""So many ones of each dtype lie on the device: a bias times them is the bias in every row."""

_MIB: Final = 1 << 20
_LARGE_WORKSPACE: Final = frozenset({"gfx940", "gfx941", "gfx942", "gfx950"})


def workspace_for(arch: str) -> int:
    """Bytes that rocBLAS may use while it computes: as many as it would take by itself."""
    return (128 if arch in _LARGE_WORKSPACE else 32) * _MIB


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
"""
The dtypes that rocBLAS computes as :mod:`propolis.ops` asks for: sums in f32 or wider.

f8 is not among them: rocBLAS 4 has it in the format without infinity and negative zero of one
architecture ("fnuz"), in functions that rocBLAS 5 no longer has, and ours is OCP's e4m3.
"""

EXTRA_BYTES: Final = sum(ONES * dtype.block_bytes for dtype in NUMBERS)
"""Of the ones of all dtypes."""


class Operand(NamedTuple):
    """
    A matrix in memory.

    Attributes:
        ptr: its address.
        operation: whether rocBLAS is to transpose it.
        leading: the distance between columns, in elements.
        step: and between batches.
    """

    ptr: int
    operation: int
    leading: int
    step: int


class Handle:
    """
    rocBLAS on one device.

    Attributes:
        ones: where the ones of each dtype lie.
    """

    def __init__(self, device: RocmDevice) -> None:
        """
        Make the handle, with its memory; everything it queues goes to the device's one stream.

        Args:
            device: keeps it (:meth:`RocmDevice.keep`).

        Raises:
            DeviceError: there is no rocBLAS, it refuses the device, or memory is lacking.
        """
        self._context = context = device.context
        context.refuse_capture("making a rocBLAS handle")
        self._library = library = _ffi.library()
        self._gemm = library.function("rocblas_gemm_ex")
        self._gemms = library.function("rocblas_gemm_strided_batched_ex")
        workspace_bytes = workspace_for(device.properties.arch)
        workspace = _allocate(device, workspace_bytes, "workspace")
        constants = _allocate(device, EXTRA_BYTES, "constants")
        self._memory = workspace, constants
        self.ones = _fill_with_ones(device, constants)
        made = ctypes.c_void_p()
        self._value = 0
        with context.lock:
            context.make_current()
            self._set("rocblas_create_handle", ctypes.addressof(made))
            self._value = int(made.value or 0)
            handle = self._value
            weakref.finalize(self, _destroy, library, handle, os.getpid())
            self._set("rocblas_set_stream", handle, context.stream)
            self._set("rocblas_set_pointer_mode", handle, _ffi.POINTERS_ON_HOST)
            # Sums in whatever order threads arrive would differ from run to run.
            self._set("rocblas_set_atomics_mode", handle, _ffi.ATOMICS_NOT_ALLOWED)
            self._set("rocblas_set_workspace", handle, workspace.ptr, workspace_bytes)

    def multiply(
        self,
        dtype: DType,
        sizes: tuple[int, int, int],
        first: Operand,
        second: Operand,
        out: int,
        out_step: int = 0,
        batches: int = 1,
        *,
        onto: bool = False,
    ) -> None:
        """
        Queue ``out = first @ second`` of column-major matrices.

        Args:
            dtype: of all three.
            sizes: rows of ``first``, columns of ``second``, and what is summed over.
            first: the left one.
            second: the right one.
            out: the address of the result, whose columns lie side by side.
            out_step: elements between its batches.
            batches: how many products.
            onto: add to what is there; both are summed before the result is rounded.

        Raises:
            DeviceLostError: the device failed for good.
            DeviceError: rocBLAS, or the device, refused.
            PluginError: rocBLAS lacks this product, or the plugin asks wrongly.
        """
        context = self._context
        if context.liveness.failure is not None:
            context.liveness.expect()
        kind, compute, one, zero = NUMBERS[dtype]
        beta = one if onto else zero
        x, x_operation, x_leading, x_step = first
        y, y_operation, y_leading, y_step = second
        m, n, k = sizes
        with context.lock:
            context.make_current()
            if batches == 1:
                status = self._gemm(
                    *(self._value, x_operation, y_operation, m, n, k),
                    *(one, x, kind, x_leading, y, kind, y_leading),
                    *(beta, out, kind, m, out, kind, m),
                    *(compute, _ffi.STANDARD, 0, 0),
                )
            else:
                status = self._gemms(
                    *(self._value, x_operation, y_operation, m, n, k),
                    *(one, x, kind, x_leading, x_step, y, kind, y_leading, y_step),
                    *(beta, out, kind, m, out_step, out, kind, m, out_step),
                    *(batches, compute, _ffi.STANDARD, 0, 0),
                )
        if status not in SERVED:
            many = f", {batches} times" if batches > 1 else ""
            name = "gemm_strided_batched_ex" if batches > 1 else "gemm_ex"
            leading = f"leading dimensions {x_leading} and {y_leading}"
            what = f"rocblas_{name} of {dtype}, {n} x {k} by {k} x {m}{many} ({leading})"
            self._fail(what, status)

    def _set(self, name: str, *arguments: Any) -> None:
        status = self._library.function(name)(*arguments)
        if status not in SERVED:
            self._fail(name, status)

    def _fail(self, what: str, status: int) -> None:
        """
        Raise for a status.

        Raises:
            PropolisError: always; a DeviceLostError where it is the device that failed.
        """
        context = self._context
        context.expect_sound(what)  # rocBLAS turns every error of HIP's into the same number
        raise error_for(context.id, what, status)


def _allocate(device: RocmDevice, nbytes: int, what: str) -> Storage:
    try:
        return device.guarded(device.memory.allocate, nbytes)
    except OutOfMemoryError as exc:
        # Others need no workspace: a call that they can serve is not to end for lack of it.
        msg = f"{device.id}: no memory for rocBLAS's {what}: {exc}"
        raise DeviceError(msg) from exc


def _fill_with_ones(device: RocmDevice, storage: Storage) -> dict[DType, int]:
    found, offset = {}, 0
    content = b""
    for dtype in NUMBERS:
        found[dtype] = storage.ptr + offset
        part = np.ones(ONES, dtype.numpy).tobytes()
        content, offset = content + part, offset + len(part)
    device.copy_in(storage, 0, np.frombuffer(content, np.uint8))
    return found


def _destroy(library: Library, handle: int, process: int) -> None:
    """Give a handle back, save in a forked process, which has none."""
    if os.getpid() == process:
        library.function("rocblas_destroy_handle")(handle)


__all__ = ["EXTRA_BYTES", "NUMBERS", "ONES", "Handle", "Operand", "workspace_for"]
