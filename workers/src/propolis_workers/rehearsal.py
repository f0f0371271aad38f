"""
Rehearsals: running code on a device without memory, to learn what it would take.

Every op infers shapes and allocates its result, as on any device, and computes nothing;
what is allocated is counted.  So the figures follow the code that is rehearsed, and cost
some microseconds an op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis.dispatch.table import DispatchTable
from propolis.ops import catalogue
from propolis.records import OpImpl
from propolis.records import Provenance
from propolis.storage import DeviceProperties
from propolis.storage import Memory
from propolis.tensor import Device


if TYPE_CHECKING:
    import numpy as np

    from propolis.storage import Storage

_KIND: Final = "rehearsal"


class _Counted:
    """Bytes that are not there, at an address of their own."""

    def __init__(self, memory: CountingMemory, ptr: int, nbytes: int) -> None:
        self._memory = memory
        self.ptr = ptr
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._memory.live -= self.nbytes


class CountingMemory(Memory):
    """
    An allocator that only counts.

    Attributes:
        live: bytes that are in use.
        peak: the most that were at once; set it to ``live`` to begin anew.
    """

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self._next = 1 << 40

    def allocate(self, nbytes: int) -> Storage:
        """Count some more bytes."""
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        ptr, self._next = self._next, self._next + nbytes + 1
        return _Counted(self, ptr, nbytes)

    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Read nothing: a mapped file stays where it is."""

    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """Zeros, as good as anything."""
        del source, offset
        target[:] = 0


class RehearsalDevice(Device):
    """
    A device where every op is served, and does nothing.

    Attributes:
        memory: what is counted.
    """

    memory: CountingMemory

    def __init__(self) -> None:
        super().__init__(DeviceProperties(_KIND, 0, "a rehearsal", "none"), CountingMemory())
        provenance = Provenance(_KIND, "propolis-workers", "")
        impls = (
            OpImpl(op=name, fn=_nothing, device=_KIND, dtypes=spec.dtypes, provenance=provenance)
            for name, spec in catalogue().items()
        )
        self.table = DispatchTable(self, impls, self)


def _nothing(*args: object, **kwargs: object) -> None:
    """Every op."""


__all__ = ["CountingMemory", "RehearsalDevice"]
