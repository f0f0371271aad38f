"""
Bytes on a device, who hands them out, and what the device says of itself.

A plugin that brings hardware subclasses :class:`Memory`; the CPU's, in
:mod:`propolis.cpu`, is the shortest example.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC
from abc import abstractmethod
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Final
from typing import Protocol

import numpy as np

from propolis.layout import Layout


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping


POOL_LIMIT: Final = 512 * 1024 * 1024
_BYTES: Final = np.dtype(np.uint8)


class Storage(Protocol):
    """Bytes on a device, freed when the last reference goes."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    @property
    def ptr(self) -> int:
        """Address on the device."""


class Memory(ABC):
    """
    The allocator and the copies of one device, as ``propolis_storage`` returns it.

    Core calls it through the device (:meth:`Device.guarded`): what raises
    :class:`~propolis.errors.DeviceLostError` here marks the device lost.
    """

    @abstractmethod
    def allocate(self, nbytes: int) -> Storage:
        """
        Uninitialised storage of ``nbytes`` bytes (0 is allowed).

        Where storages can be referred to weakly, captured steps use the memory of those that were
        freed on their way again; else they hold all of them.

        Raises:
            OutOfMemoryError: the device has too little free memory.
        """

    @abstractmethod
    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Copy a contiguous 1-D uint8 host array to byte ``offset`` of ``target``."""

    @abstractmethod
    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """Copy from byte ``offset`` of ``source`` to a contiguous 1-D uint8 host array."""

    def copy_out_later(
        self, source: Storage, offset: int, nbytes: int
    ) -> Callable[[], np.ndarray] | None:
        """
        Queue a copy from byte ``offset`` of ``source`` to the host, behind what is queued now.

        What is returned waits for the copy, and for nothing that is queued after it, and gives a
        contiguous 1-D uint8 array.  None, the default, where ``copy_out`` does as well: where
        memory has no queue, or the copy is large.
        """
        del source, offset, nbytes
        return None

    def available(self) -> int | None:
        """Bytes that can still be allocated, as far as is known; None, the default, where not."""
        return None

    def synchronize(self) -> None:  # noqa: B027  (memory without a queue needs none)
        """Return once all work queued on the device is done.  Nothing to do by default."""


class Step(Protocol):
    """What learns of the storages that a thread makes meanwhile (:attr:`Device.steps`)."""

    def made(self, storage: Storage) -> None:
        """A tensor's storage was allocated."""

    def filled(self, storage: Storage) -> None:
        """The host copied into a storage."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """
    What a device says of itself.

    Attributes:
        kind: the kind users type, for example ``"rocm"``.
        index: its number among devices of that kind, from 0.
        name: its marketing name.
        arch: its architecture, as implementations declare it (``"gfx1100"``,
            ``"x86_64"``).
        total_memory: bytes of memory, 0 when unknown.
        extra: further facts for people, for example ``{"compute_units": "96"}``.  They
            are in reports that users publish: nothing that identifies one card or its
            owner.  An entry ``"simulator"`` says that the device is no hardware.  A
            device far slower than its kind says ``"conformance_scale": "0.1"``: the suite then
            draws smaller sizes and fewer random cases.
    """

    kind: str
    index: int
    name: str
    arch: str
    total_memory: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What users type to choose the device: ``"cpu"``, ``"rocm:0"``."""
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"


class CpuStorage:
    """Host bytes, held by a contiguous numpy array of any dtype."""

    __slots__ = ("_pool", "buffer")

    def __init__(self, buffer: np.ndarray, pool: BufferPool | None = None) -> None:
        self.buffer = buffer
        self._pool = pool

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.buffer.nbytes

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        return self.buffer.ctypes.data

    @property
    def bytes(self) -> np.ndarray:
        """The same memory as a 1-D uint8 array."""
        buffer = self.buffer
        if buffer.ndim == 1 and buffer.dtype == _BYTES:
            return buffer
        return buffer.reshape(-1).view(np.uint8)

    def __del__(self) -> None:
        # Two references, this object's and the call's: no view outlives the storage.
        if self._pool is not None and sys.getrefcount(self.buffer) == 2:
            self._pool.give(self.buffer)


class SharedStorage(CpuStorage):
    """Host bytes that came as a numpy array, so that other storages may hold them too."""

    __slots__ = ()


class BufferPool:
    """
    Freed buffers by size, ready for the next tensor; at most ``POOL_LIMIT`` bytes.

    Attributes:
        nbytes: how many it holds.

    Buffers come back in ``__del__``, which may run in any thread and in the middle of
    these methods, so nobody ever waits for the lock: whoever finds it taken leaves
    the pool alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[np.ndarray]] = {}
        self.nbytes = 0

    def take(self, nbytes: int) -> np.ndarray:
        """An uninitialised 1-D uint8 array of at least ``nbytes`` bytes."""
        # Sizes in steps of an eighth of a power of two: one buffer serves its neighbours.
        step = 1 << max(0, nbytes.bit_length() - 4)
        size = -(-nbytes // step) * step
        if self._lock.acquire(blocking=False):
            try:
                free = self._free.get(size)
                if free:
                    self.nbytes -= size
                    return free.pop()
            finally:
                self._lock.release()
        return np.empty(size, np.uint8)

    def give(self, buffer: np.ndarray) -> None:
        """Keep a buffer that nobody refers to any more."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.nbytes + buffer.nbytes <= POOL_LIMIT:
                self.nbytes += buffer.nbytes
                self._free.setdefault(buffer.nbytes, []).append(buffer)
        finally:
            self._lock.release()


def flat_base(array: np.ndarray) -> np.ndarray:
    """The memory that ``array`` reaches, from its first element on, as one 1-D array."""
    if array.flags.c_contiguous:
        return array
    size = array.itemsize
    strides = tuple(s // size for s in array.strides)
    extent = Layout(array.shape, strides).extent
    bits = array.view(f"V{size}")  # f8e5m2 calls itself "<f1", which numpy does not understand
    return np.lib.stride_tricks.as_strided(
        bits, (extent,), (size,), writeable=array.flags.writeable
    ).view(array.dtype)
