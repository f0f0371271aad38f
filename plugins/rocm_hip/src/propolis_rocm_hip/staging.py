"""
Copies from the host, and small ones to it, that do not wait: through page-locked memory.

The caller may change its array as soon as a copy returns, so the bytes are first put
into the ring; the device reads them from there, in its own time.  A span of the ring is
written again only when an event behind the copies that read it has passed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_hip.pinned import pinned_empty
from propolis_rocm_hip.streams import Event


if TYPE_CHECKING:
    import numpy as np

    from propolis_rocm_hip.context import Context

RING: Final = 16 * 1024 * 1024
"""Bytes of the ring."""

ROOM: Final = 4096
"""Bytes that come back at once."""

_CHUNK: Final = RING // 4
_BATCH: Final = RING // 8
_ALIGNMENT: Final = 64


class Staging:
    """
    The ring of one device.  The context's lock is held by whoever calls.

    Args:
        context: the device's.
        size: bytes of the ring.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ring: np.ndarray | None = None
        self._base = 0
        self._head = 0
        self._batch = 0  # bytes since the last event
        self._in_flight: deque[tuple[int, Event]] = deque()  # bytes, and what ends them
        self._used = 0  # bytes of the ring that the device may still read
        self._spare: list[Event] = []

    def upload(self, ptr: int, source: np.ndarray) -> None:
        """
        Queue a copy of a 1-D uint8 array to device address ``ptr``.

        Raises:
            DeviceError: the copy, or something queued before it, failed.
        """
        context = self._context
        for start in range(0, source.nbytes, _CHUNK):
            piece = source[start : start + _CHUNK]
            span, address = self._reserve(piece.nbytes)
            span[:] = piece
            context.call("hipMemcpyHtoDAsync", ptr + start, address, piece.nbytes, context.stream)
            if self._batch >= _BATCH:
                self._mark()

    def _reserve(self, nbytes: int) -> tuple[np.ndarray, int]:
        """The next span of the ring, free to be written, and its address."""
        if self._ring is None:
            self._ring = pinned_empty(self._context, RING)
            self._base = self._ring.ctypes.data
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._head + size > RING:  # no span wraps: what is left at the end is skipped
            self._account(RING - self._head)
            self._head = 0
        while self._used + size > RING:
            if not self._in_flight:
                self._mark()
            self._retire()
        start = self._head
        self._head += size
        self._account(size)
        return self._ring[start : start + nbytes], self._base + start

    def _account(self, nbytes: int) -> None:
        self._used += nbytes
        self._batch += nbytes

    def _mark(self) -> None:
        """End a batch: an event behind its copies."""
        event = self._spare.pop() if self._spare else Event(self._context)
        event.record()
        self._in_flight.append((self._batch, event))
        self._batch = 0

    def _retire(self) -> None:
        """Wait for the oldest batch."""
        nbytes, event = self._in_flight.popleft()
        event.synchronize()
        self._spare.append(event)
        self._used -= nbytes


class Returning:
    """
    Copies to the host that somebody waits for later, each through a room of its own.

    The context's lock is held by whoever calls :meth:`copy`.

    Args:
        context: the device's.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rooms: list[tuple[np.ndarray, Event]] = []
        self._spare: list[int] = []

    def copy(self, ptr: int, nbytes: int) -> Returned | None:
        """Queue a copy of so many bytes at a device address; None where no room has so many."""
        context = self._context
        if not 0 < nbytes <= ROOM:
            return None
        if not self._spare:
            self._rooms.append((pinned_empty(context, ROOM), Event(context)))
            self._spare.append(len(self._rooms) - 1)
        number = self._spare.pop()
        room, event = self._rooms[number]
        returned = Returned(self._spare, number, room[:nbytes], event)
        context.call("hipMemcpyDtoHAsync", room.ctypes.data, ptr, nbytes, context.stream)
        event.record()
        return returned


class Returned:
    """
    A copy on its way to the host; called, it waits for it and gives the bytes.

    When it goes its room is the next copy's: that is queued behind this one, come or not.
    """

    def __init__(self, spare: list[int], number: int, room: np.ndarray, event: Event) -> None:
        self._spare, self._number, self._room, self._event = spare, number, room, event

    def __call__(self) -> np.ndarray:
        """The bytes, as an array of their own."""
        self._event.synchronize()
        return self._room.copy()

    def __del__(self) -> None:
        # Its number alone: in a cycle, the event may be gone by now if nobody else had it.
        self._spare.append(self._number)


__all__ = ["RING", "ROOM", "Returned", "Returning", "Staging"]
