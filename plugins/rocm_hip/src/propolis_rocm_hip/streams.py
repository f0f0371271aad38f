"""
Streams beside the device's own, and events that order and time them.

Everything Propolis does on a device is queued on the device's one stream.  Whoever
queues work on another must order the two by events, in both directions: memory goes
back to the allocator in the order of the device's stream.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_hip import _ffi
from propolis_rocm_hip._release import release
from propolis_rocm_hip.context import STREAM_NON_BLOCKING
from propolis_rocm_hip.errors import NOT_READY


if TYPE_CHECKING:
    from propolis_rocm_hip.context import Context

_DISABLE_TIMING: Final = 2


class Event:
    """
    A mark in a stream.

    Args:
        context: the device's.
        timing: whether ``elapsed`` may be asked; marks without are cheaper.
    """

    def __init__(self, context: Context, *, timing: bool = False) -> None:
        self._context = context
        flags = 0 if timing else _DISABLE_TIMING
        self.handle = int(context.call("hipEventCreateWithFlags", flags))
        weakref.finalize(self, release, context, "hipEventDestroy", self.handle)

    def record(self, stream: int | None = None) -> None:
        """Set the mark behind everything queued so far on ``stream``, the device's when None."""
        context = self._context
        with context.lock:
            where = context.stream if stream is None else stream
            context.call("hipEventRecord", self.handle, where)

    def done(self) -> bool:
        """Whether the work before the mark is done."""
        return _ready(self._context, "hipEventQuery", self.handle)

    def synchronize(self) -> None:
        """Return once the work before the mark is done."""
        self._context.call("hipEventSynchronize", self.handle)

    def elapsed(self, start: Event) -> float:
        """
        Seconds from ``start`` to this mark, by the device's clock; both are done.

        Raises:
            DeviceError: one of them was made without timing, or is not done yet.
        """
        milliseconds = self._context.call("hipEventElapsedTime", start.handle, self.handle)
        return float(milliseconds) / 1000


class Stream:
    """
    A queue of its own.

    Args:
        context: the device's.
        priority: lower goes first; the device clamps it to what it knows.
    """

    def __init__(self, context: Context, priority: int = 0) -> None:
        self._context = context
        flags = STREAM_NON_BLOCKING
        self.handle = int(context.call("hipStreamCreateWithPriority", flags, priority))
        weakref.finalize(self, release, context, "hipStreamDestroy", self.handle)

    def wait(self, event: Event) -> None:
        """Let what is queued from now on start after ``event``."""
        self._context.call("hipStreamWaitEvent", self.handle, event.handle, 0)

    def done(self) -> bool:
        """Whether everything queued is done."""
        return _ready(self._context, "hipStreamQuery", self.handle)

    def synchronize(self) -> None:
        """Return once everything queued is done."""
        self._context.call("hipStreamSynchronize", self.handle)


def _ready(context: Context, name: str, handle: int) -> bool:
    """Ask a stream or an event; "not ready" is an answer, not an error."""
    code = int(getattr(_ffi.hip(), name)(handle)[0])
    if code and code != NOT_READY:
        context.fail(name, code)
    return not code


__all__ = ["Event", "Stream"]
