"""A device's hipBLASLt handle: what it found for each product, and the products that it queues."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.errors import PluginError
from propolis_rocm_blas import _ffi_lt as lt
from propolis_rocm_blas.errors import HIPBLASLT
from propolis_rocm_blas.multiplier import Multiplier


if TYPE_CHECKING:
    from propolis_rocm_blas.multiplier import Matrix
    from propolis_rocm_blas.multiplier import Product
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_hip.vendor import Library

NUMBERS: Final = {dtypes.f32: lt.F32, dtypes.f16: lt.F16, dtypes.bf16: lt.BF16}
"""How hipBLASLt calls the dtypes that it is used for; all are summed in f32."""

MOST_PLANNED: Final = 1024
"""Products of which it is kept how they are done, or why not: beyond these all are asked anew."""

_INVALID_VALUE: Final = HIPBLASLT.names.index("INVALID_VALUE")
_NOT_SUPPORTED: Final = HIPBLASLT.names.index("NOT_SUPPORTED")
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)


class Planned:
    """
    A product's descriptors, and the algorithm that hipBLASLt expects to be fastest.

    Attributes:
        with_: what is done with the matrices.
        first: how the left one lies.
        second: the right one.
        out: the result.
        found: the algorithm; its address is the structure's.
        made: what is to be destroyed, with the functions that do it.
    """

    def __init__(self, library: Library) -> None:
        self.with_ = self.first = self.second = self.out = 0
        self.found = lt.Found()
        self.made: list[tuple[str, int]] = []
        weakref.finalize(self, _destroy, library, self.made, os.getpid())


class HandleLt(Multiplier):
    """hipBLASLt on one device."""

    library_name = "hipBLASLt"
    statuses = HIPBLASLT

    def __init__(self, device: RocmDevice) -> None:
        """
        Make the handle, with its memory.

        Args:
            device: keeps it (:meth:`RocmDevice.keep`).

        Raises:
            DeviceError: there is no hipBLASLt, it refuses the device, or memory is lacking.
        """
        library = lt.library()
        self._matmul = library.function("hipblasLtMatmul")
        self._planned: dict[Product, Planned | str] = {}
        super().__init__(device, library)
        context = self._context
        with context.lock:
            context.make_current()
            made: list[tuple[str, int]] = []
            weakref.finalize(self, _destroy, library, made, os.getpid())
            self._value = self._create("", made)
            self._preference = self._create("MatmulPreference", made)
            most = ctypes.c_uint64(self._workspace_bytes)
            self._set("MatmulPreference", self._preference, lt.MOST_WORKSPACE, most)

    def lacks(self, product: Product) -> str:
        """Why there is no algorithm for a product; known after the first time."""
        known = self._planned.get(product)
        if known is None:
            context = self._context
            with context.lock:
                context.make_current()
                try:
                    known = self._plan(product)
                except PluginError as exc:
                    known = str(exc)
                    self._keep(product, known)
        return known if isinstance(known, str) else ""

    def _queue(self, product: Product, first: int, second: int, out: int, *, onto: bool) -> None:
        planned = self._planned.get(product)
        if not isinstance(planned, Planned):
            planned = self._plan(product)
        status = self._matmul(
            *(self._value, planned.with_, ctypes.addressof(_ONE)),
            *(first, planned.first, second, planned.second),
            ctypes.addressof(_ONE if onto else _ZERO),
            *(out, planned.out, out, planned.out),
            *(ctypes.addressof(planned.found), self._workspace.ptr, self._workspace_bytes),
            self._context.stream,
        )
        if status not in HIPBLASLT.served:
            self._expect(f"hipblasLtMatmul of {product}", status)

    def _plan(self, product: Product) -> Planned:
        """
        Describe a product, and ask for an algorithm; both are kept.

        Raises:
            PluginError: hipBLASLt has none.
        """
        dtype, (m, n, k), x, y, d, batches = product
        planned = Planned(self._library)
        planned.with_ = self._create("MatmulDesc", planned.made, lt.SUMS_IN_F32, lt.F32)
        for attribute, matrix in ((lt.TRANSPOSE_FIRST, x), (lt.TRANSPOSE_SECOND, y)):
            operation = ctypes.c_int32(lt.TRANSPOSED if matrix.transposed else lt.PLAIN)
            self._set("MatmulDesc", planned.with_, attribute, operation)
        kind = NUMBERS[dtype]
        planned.first = self._layout(planned, kind, (m, k), x, batches)
        planned.second = self._layout(planned, kind, (k, n), y, batches)
        planned.out = self._layout(planned, kind, (m, n), d, batches)
        count = ctypes.c_int32()
        status = self._library.function("hipblasLtMatmulAlgoGetHeuristic")(
            *(self._value, planned.with_, planned.first, planned.second),
            *(planned.out, planned.out, self._preference, 1),
            *(ctypes.addressof(planned.found), ctypes.addressof(count)),
        )
        if status == _INVALID_VALUE or (not status and not count.value):
            status = _NOT_SUPPORTED  # what it means where there are no kernels for the card
        self._expect(
            f"hipblasLtMatmulAlgoGetHeuristic for {product}", status or planned.found.state
        )
        self._keep(product, planned)
        return planned

    def _keep(self, product: Product, known: Planned | str) -> None:
        if len(self._planned) >= MOST_PLANNED:
            self._planned.clear()
        self._planned[product] = known

    def _layout(
        self, planned: Planned, kind: int, shape: tuple[int, int], matrix: Matrix, batches: int
    ) -> int:
        """How a matrix lies that has this shape once it is transposed, where it is to be."""
        rows, columns = shape[::-1] if matrix.transposed else shape
        made = self._create("MatrixLayout", planned.made, kind, rows, columns, matrix.leading)
        if batches > 1:
            self._set("MatrixLayout", made, lt.BATCHES, ctypes.c_int32(batches))
            self._set("MatrixLayout", made, lt.STEP, ctypes.c_int64(matrix.step))
        return made

    def _create(self, kind: str, kept: list[tuple[str, int]], *arguments: int) -> int:
        """Make something, which whoever has ``kept`` destroys."""
        made = ctypes.c_void_p()
        self._ask(f"hipblasLt{kind}Create", ctypes.addressof(made), *arguments)
        kept.append((f"hipblasLt{kind}Destroy", int(made.value or 0)))
        return kept[-1][1]

    def _set(
        self,
        kind: str,
        descriptor: int,
        attribute: int,
        value: ctypes.c_int32 | ctypes.c_int64 | ctypes.c_uint64,
    ) -> None:
        name = f"hipblasLt{kind}SetAttribute"
        self._ask(name, descriptor, attribute, ctypes.addressof(value), ctypes.sizeof(value))


def _destroy(library: Library, made: list[tuple[str, int]], process: int) -> None:
    """Give back what was made, the last first, save in a forked process, which has none."""
    if os.getpid() == process:
        for end, what in reversed(made):
            library.function(end)(what)


__all__ = ["MOST_PLANNED", "NUMBERS", "HandleLt", "Planned"]
