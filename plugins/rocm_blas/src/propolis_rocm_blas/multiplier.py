"""
Products as a library of AMD's is asked for them, whichever library it is.

Matrices are column-major: see :mod:`propolis_rocm_blas._plan`.  A library's handle is no thread's
own: the context's lock keeps two from using it at once, and others' work out of a step that is
being captured.  All memory that it needs is given to it when the handle is made, so that no
product allocates.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

import numpy as np

from propolis import dtypes
from propolis.errors import OutOfMemoryError
from propolis_rocm_hip.space import lacking


if TYPE_CHECKING:
    from propolis import DType
    from propolis import Storage
    from propolis_rocm_blas.errors import Statuses
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_hip.vendor import Library

ONES: Final = 4096
"""So many ones of each dtype lie on the device: a bias times them is the bias in every row."""

DTYPES: Final = (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16)
"""Those that sums in f32 or wider are had of, as :mod:`propolis.ops` asks for."""

EXTRA_BYTES: Final = sum(ONES * dtype.block_bytes for dtype in DTYPES)
"""Of the ones of all dtypes."""

_MIB: Final = 1 << 20
_LARGE_WORKSPACE: Final = frozenset({"gfx940", "gfx941", "gfx942", "gfx950"})


def workspace_for(arch: str) -> int:
    """Bytes that a library may use while it computes: as many as rocBLAS would take by itself."""
    return (128 if arch in _LARGE_WORKSPACE else 32) * _MIB


class Matrix(NamedTuple):
    """
    How a matrix lies in memory.

    Attributes:
        transposed: whether the library is to transpose it.
        leading: the distance between columns, in elements.
        step: and between batches.
    """

    transposed: bool
    leading: int
    step: int = 0


class Product(NamedTuple):
    """
    What is asked for, save where the matrices are: ``out = first @ second``.

    Attributes:
        dtype: of all three.
        sizes: rows of ``first``, columns of ``second``, and what is summed over.
        first: the left one.
        second: the right one.
        out: the result; never transposed.
        batches: how many products.
    """

    dtype: DType
    sizes: tuple[int, int, int]
    first: Matrix
    second: Matrix
    out: Matrix
    batches: int = 1

    def __str__(self) -> str:
        """As our row-major matrices are multiplied: the operands change sides."""
        m, n, k = self.sizes
        many = f", {self.batches} times" if self.batches > 1 else ""
        leading = f"leading dimensions {self.first.leading} and {self.second.leading}"
        return f"{self.dtype}, {n} x {k} by {k} x {m}{many} ({leading})"


class Multiplier(ABC):
    """
    A library on one device; everything it queues goes to the device's one stream.

    Attributes:
        ones: where the ones of each dtype lie.
    """

    library_name: str
    """What people call it."""

    statuses: Statuses
    """What its functions answer."""

    def __init__(self, device: RocmDevice, library: Library) -> None:
        """
        Take the memory, which is kept for as long as the handle.

        Args:
            device: keeps it (:meth:`RocmDevice.keep`).
            library: loaded.

        Raises:
            DeviceError: memory is lacking, or a graph is being captured.
        """
        self._library = library
        self._context = context = device.context
        context.refuse_capture(f"making a {self.library_name} handle")
        self._workspace_bytes = workspace_for(device.properties.arch)
        self._workspace = allocate(
            device, self._workspace_bytes, f"{self.library_name}'s workspace"
        )
        self._constants = allocate(device, EXTRA_BYTES, f"{self.library_name}'s constants")
        self.ones = _fill_with_ones(device, self._constants)

    def multiply(
        self, product: Product, first: int, second: int, out: int, *, onto: bool = False
    ) -> None:
        """
        Queue a product.

        Args:
            product: what is multiplied.
            first: the address of the left matrix.
            second: of the right one.
            out: of the result.
            onto: add to what is there; both are summed before the result is rounded.

        Raises:
            DeviceLostError: the device failed for good.
            DeviceError: the library, or the device, refused.
            PluginError: the library lacks this product, or the plugin asks wrongly.
        """
        context = self._context
        if context.liveness.failure is not None:
            context.liveness.expect()
        with context.lock:
            context.make_current()
            self._queue(product, first, second, out, onto=onto)

    def lacks(self, product: Product) -> str:
        """Why the library cannot be asked for a product, as far as it says; empty where it can."""
        del product
        return ""

    @abstractmethod
    def _queue(self, product: Product, first: int, second: int, out: int, *, onto: bool) -> None:
        """Queue a product; the lock is held, and the device is current."""

    def _ask(self, name: str, *arguments: Any) -> None:
        """Call a function of the library, which must serve."""
        self._expect(name, self._library.function(name)(*arguments))

    def _expect(self, what: object, status: int) -> None:
        """
        Raise for a status, unless the call was served.

        Raises:
            PropolisError: it was not; a DeviceLostError where it is the device that failed.
        """
        if status in self.statuses.served:
            return
        context = self._context
        context.expect_sound(str(what))  # the libraries make one number of all errors of HIP's
        raise self.statuses.error(context.id, str(what), status)


def allocate(device: RocmDevice, nbytes: int, what: str) -> Storage:
    """
    Memory of a device.

    Raises:
        DeviceError: there is too little.  Others need none: a call that they can serve is not to
            end for lack of it.
    """
    try:
        return device.guarded(device.memory.allocate, nbytes)
    except OutOfMemoryError as exc:
        raise lacking(device, what, exc) from exc


def _fill_with_ones(device: RocmDevice, storage: Storage) -> dict[DType, int]:
    found, offset = {}, 0
    content = b""
    for dtype in DTYPES:
        found[dtype] = storage.ptr + offset
        part = np.ones(ONES, dtype.numpy).tobytes()
        content, offset = content + part, offset + len(part)
    device.copy_in(storage, 0, np.frombuffer(content, np.uint8))
    return found


__all__ = [
    "DTYPES",
    "EXTRA_BYTES",
    "ONES",
    "Matrix",
    "Multiplier",
    "Product",
    "allocate",
    "workspace_for",
]
