"""
A fake device for tests of plugins: an address space of its own, checked at every access.

The host reaches its memory through copies alone, as on hardware; unlike hardware it
notices every access out of bounds or after free, and says where.

    >>> import numpy as np
    >>> from propolis import Tensor
    >>> from propolis_conformance.testing import FakeDevice
    >>> device = FakeDevice()
    >>> x = Tensor.from_numpy(np.float32([1, 2]), device)
    >>> x.numpy().tolist()
    [1.0, 2.0]
    >>> x.array
    Traceback (most recent call last):
    propolis.errors.DTypeError: <Tensor 2 f32 on fake:0> has no host memory: use .numpy() ...
    >>> len(device.memory.live)
    1
    >>> del x
    >>> device.memory.check()
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import OutOfMemoryError
from propolis.storage import CpuStorage
from propolis.storage import DeviceProperties
from propolis.storage import Memory
from propolis.tensor import Device


if TYPE_CHECKING:
    from propolis.storage import Storage
    from propolis.tensor import Tensor

POISON: Final = 0xA5
GUARD: Final = 64


class FakeMemoryError(AssertionError):
    """An access that hardware would not have noticed."""


class FakeStorage:
    """
    A range of the fake device's addresses; nothing on the host can look inside.

    Attributes:
        ptr: its address, never used before or again.
        nbytes: its size.
    """

    def __init__(self, memory: FakeMemory, ptr: int, nbytes: int) -> None:
        self._memory = memory
        self.ptr = ptr
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._memory.free(self)


class FakeMemory(Memory):
    """
    A separate address space.

    Attributes:
        cells: every byte there is; those handed out held ``POISON``.
        live: the addresses in use.
        copied_in: the size of each copy to the device.
        copied_out: the size of each copy from it.
        waits: how often somebody waited for it.
        capacity: bytes that may be live at once; lower it to run out of memory.
        lost: what every request raises from when it is set, as a driver's do once the
            hardware hangs; None while it works.
    """

    BASE: Final = 1 << 40

    def __init__(self, size: int = 1 << 30, capacity: int | None = None) -> None:
        # Addresses, not memory: the system backs them when they are first written.
        self.cells = np.empty(size, np.uint8)
        self.cells[:GUARD] = POISON
        self.next = GUARD
        self.live: set[int] = set()
        self.copied_in: list[int] = []
        self.copied_out: list[int] = []
        self.waits = 0
        self.capacity = size if capacity is None else capacity
        self.lost: DeviceLostError | None = None
        self._sizes: dict[int, int] = {}
        self._pending: list[Exception] = []

    def allocate(self, nbytes: int) -> FakeStorage:
        """
        Poisoned bytes between guards, at an address that never was in use before.

        Raises:
            OutOfMemoryError: more would be live than ``capacity``, or addresses ran out.
        """
        self._answer()
        room = max(nbytes, 1) + GUARD
        room += -room % GUARD
        used = sum(self._sizes.values())
        if used + nbytes > self.capacity or self.next + room > len(self.cells):
            msg = f"fake: {nbytes} bytes are more than the {self.capacity - used} that are free"
            raise OutOfMemoryError(msg)
        self.cells[self.next : self.next + room] = POISON
        ptr = self.BASE + self.next
        self.next += room
        self.live.add(ptr)
        self._sizes[ptr] = nbytes
        return FakeStorage(self, ptr, nbytes)

    def available(self) -> int:
        """What ``capacity`` leaves."""
        return max(self.capacity - sum(self._sizes.values()), 0)

    def free(self, storage: FakeStorage) -> None:
        """Poison the bytes again, so that nobody goes on using them unnoticed."""
        if storage.ptr in self.live:
            start = storage.ptr - self.BASE
            self.cells[start : start + storage.nbytes] = POISON
            self.live.discard(storage.ptr)
            del self._sizes[storage.ptr]

    def window(self, storage: Storage, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """
        The bytes as a kernel sees them, writable.

        Raises:
            FakeMemoryError: they are not this storage's, or it was freed.
        """
        if not isinstance(storage, FakeStorage):
            msg = f"{type(storage).__name__} is not memory of the fake device"
            raise FakeMemoryError(msg)
        if storage.ptr not in self.live:
            msg = f"use after free: address {storage.ptr:#x}"
            raise FakeMemoryError(msg)
        if not 0 <= offset <= offset + nbytes <= storage.nbytes:
            msg = (
                f"out of bounds: bytes [{offset}, {offset + nbytes}) of the {storage.nbytes} at "
                f"{storage.ptr:#x}"
            )
            raise FakeMemoryError(msg)
        start = storage.ptr - self.BASE + offset
        return self.cells[start : start + nbytes]

    def copy_in(self, target: Storage, offset: int, source: np.ndarray[Any, Any]) -> None:
        """As every memory does, and counted."""
        self._answer()
        _check_host(source)
        self.window(target, offset, source.nbytes)[:] = source
        self.copied_in.append(source.nbytes)

    def copy_out(self, target: np.ndarray[Any, Any], source: Storage, offset: int) -> None:
        """As every memory does, and counted."""
        self._answer()
        _check_host(target)
        target[:] = self.window(source, offset, target.nbytes)
        self.copied_out.append(target.nbytes)

    def fail_later(self, error: Exception | None = None) -> None:
        """Let the next ``synchronize`` raise, as kernels fail on hardware."""
        self._pending.append(error or DeviceError("fake: a kernel failed"))

    def synchronize(self) -> None:
        """Wait: nothing is queued, but what failed is told now."""
        self._answer()
        self.waits += 1
        if self._pending:
            raise self._pending.pop(0)

    def _answer(self) -> None:
        if self.lost is not None:
            raise self.lost

    def check(self, live: int = 0) -> None:
        """
        Look at all guards, and at what is still allocated.

        Raises:
            FakeMemoryError: a guard was written, or not ``live`` allocations are left.
        """
        outside = np.ones(self.next, bool)
        for ptr in self.live:
            start = ptr - self.BASE
            outside[start : start + self._sizes[ptr]] = False
        written = np.flatnonzero(outside & (self.cells[: self.next] != POISON))
        if written.size:
            first = self.BASE + int(written[0])
            msg = f"{written.size} bytes outside every allocation were written, first {first:#x}"
            raise FakeMemoryError(msg)
        if len(self.live) != live:
            leaks = ", ".join(f"{p:#x} ({self._sizes[p]} bytes)" for p in sorted(self.live))
            msg = f"{len(self.live)} allocations are live, not {live}: {leaks}"
            raise FakeMemoryError(msg)


class FakeDevice(Device):
    """
    A device whose memory is a :class:`FakeMemory`.

    Attributes:
        memory: its memory, with what it noticed.
    """

    memory: FakeMemory

    def __init__(
        self,
        kind: str = "fake",
        index: int = 0,
        *,
        arch: str = "fake1",
        memory: FakeMemory | None = None,
    ) -> None:
        properties = DeviceProperties(
            kind, index, "Fake One", arch=arch, extra={"simulator": "propolis_conformance.testing"}
        )
        super().__init__(properties, memory or FakeMemory())


def device_view(tensor: Tensor) -> np.ndarray[Any, Any]:
    """
    What a kernel sees: the elements of a tensor, writable, by its strides.

    Works for tensors of a fake device and of the CPU, so that a fake kernel can be
    written once, in numpy.
    """
    if isinstance(tensor.storage, CpuStorage):
        return tensor.array
    memory, layout, size = tensor.device.memory, tensor.layout, tensor.dtype.block_bytes
    if not isinstance(memory, FakeMemory):
        msg = f"{tensor!r} is not on a fake device"
        raise FakeMemoryError(msg)
    reach = (layout.extent - layout.offset) * size
    cells = memory.window(tensor.storage, layout.offset * size, reach)
    strides = tuple(s * size for s in layout.strides)
    return np.ndarray(layout.shape, tensor.dtype.numpy, cells, strides=strides)


def assert_on(tensor: Tensor, device: Device) -> None:
    """
    Check that a tensor is where it should be.

    Raises:
        AssertionError: it is elsewhere.
    """
    if tensor.device is not device:
        msg = f"{tensor!r} should be on {device.id}"
        raise AssertionError(msg)


def assert_close(
    tensor: Tensor,
    expected: np.ndarray[Any, Any],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """
    Check a tensor's elements, NaN for NaN.

    Raises:
        AssertionError: one is off; the message says which.
    """
    actual = tensor.numpy()
    if tensor.dtype.is_float:
        actual = actual.astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol, atol, err_msg=repr(tensor))


def _check_host(array: np.ndarray[Any, Any]) -> None:
    if (array.dtype, array.ndim) != (np.uint8, 1):
        msg = f"copies take 1-D uint8 arrays, not {array.dtype} of rank {array.ndim}"
        raise FakeMemoryError(msg)


__all__ = [
    "FakeDevice",
    "FakeMemory",
    "FakeMemoryError",
    "FakeStorage",
    "assert_close",
    "assert_on",
    "device_view",
]
