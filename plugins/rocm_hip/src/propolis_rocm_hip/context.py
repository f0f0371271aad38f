"""One device as HIP calls see it: its number, its stream, its lock, and whether it is lost."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.liveness import Liveness
from propolis_rocm_hip import _ffi
from propolis_rocm_hip.errors import STICKY


if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM_NON_BLOCKING: Final = 1


# HIP does not survive a fork: a child that calls it hangs or reads nonsense.
_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _forked() -> None:
    for context in _contexts:
        context.liveness.failure = DeviceLostError(
            f"{context.id}: this process was forked from one that uses the GPU: start it with "
            f"multiprocessing's 'spawn' method"
        )


def _destroy(stream: int, process: int) -> None:
    """Give a stream back, save in a forked process; a lost device has none to give back."""
    if os.getpid() == process:
        with contextlib.suppress(DeviceError):
            _ffi.call("rocm", "hipStreamDestroy", stream)


os.register_at_fork(after_in_child=_forked)


class Context:
    """
    What the parts of a device share.

    Attributes:
        index: its number among the visible devices.
        id: ``"rocm:0"``.
        stream: the stream that everything is queued on.
        stream_handle: the same for calls by ctypes.
        lock: held while something is queued.  A capture holds it from begin to end, so
            that no other thread's work ends up in the graph.
        capturing: the thread that is capturing the stream; None when nobody is.
        liveness: whether the device still works.
    """

    def __init__(self, index: int, *, alone: bool = True) -> None:
        """
        Make the stream.

        Args:
            index: the device.
            alone: it is the only visible one, so that every thread's current device is it.

        Raises:
            DeviceError: the device cannot be used.
        """
        self.index = index
        self.id = f"rocm:{index}"
        self.lock = threading.RLock()
        self.capturing: int | None = None
        self._waiting = 0
        self._captures_due = 0
        self._idle = threading.Condition(self.lock)
        self.liveness = Liveness(self.id)
        self._alone = alone
        _contexts.add(self)
        stream = self.call("hipStreamCreateWithFlags", STREAM_NON_BLOCKING)
        self.stream = int(stream)
        self.stream_handle = ctypes.c_void_p(self.stream)
        weakref.finalize(self, _destroy, self.stream, os.getpid())

    def call(self, name: str, *args: Any) -> Any:
        """
        Call a HIP function with this device current, and check its result.

        Raises:
            DeviceLostError: the device failed for good, now or earlier.
            DeviceError: the call failed.
        """
        return self.liveness.guarded(self._call, name, *args)

    def _call(self, name: str, *args: Any) -> Any:
        self.make_current()
        return _ffi.call(self.id, name, *args)

    def make_current(self) -> None:
        """
        Make it this thread's current device, which is the one that vendors' libraries work on.

        Raises:
            DeviceError: the device cannot be used.
        """
        if not self._alone:
            _ffi.call(self.id, "hipSetDevice", self.index)

    def fail(self, name: str, code: int) -> None:
        """
        Raise for a code that a function called by ctypes returned.

        Raises:
            DeviceError: always.
        """
        error = _ffi.failure(self.id, name, code)
        if isinstance(error, DeviceLostError):
            self.liveness.lost(error)
        raise error

    def expect_sound(self, what: str) -> None:
        """
        Check that HIP did not fail for good: vendors' libraries hide that in codes of their own.

        Args:
            what: that failed, for the message.

        Raises:
            DeviceLostError: it did; the device is lost.
        """
        found = _ffi.native("hipPeekAtLastError")()  # in this thread; it stays as it is
        if found in STICKY:
            self.fail(what, found)

    def synchronize(self) -> None:
        """
        Wait for everything queued on the stream.

        Raises:
            DeviceError: something queued failed.
        """
        with self.lock:
            while self._captures_due:
                self._idle.wait()
            self._waiting += 1
        try:
            self.call("hipStreamSynchronize", self.stream)
        finally:
            with self.lock:
                self._waiting -= 1
                self._idle.notify_all()

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """
        Keep the stream for this thread's capture.

        HIP gives a capture up when a thread waits for the stream, so it begins when none
        does, and until its end all others stay outside.  While it is due nobody begins to wait:
        among several who do all the time there is always one.
        """
        with self.lock:
            self._captures_due += 1
            try:
                while self._waiting:
                    self._idle.wait()
            finally:
                self._captures_due -= 1
                self._idle.notify_all()
            self.capturing = threading.get_ident()
            try:
                yield
            finally:
                self.capturing = None

    def is_captured(self) -> bool:
        """Whether what this thread queues becomes part of a graph."""
        return self.capturing == threading.get_ident()

    def refuse_capture(self, what: str) -> None:
        """
        Check that this thread is not capturing.

        Args:
            what: what it is about to do, for the message.

        Raises:
            DeviceError: it is: what it does could not be replayed.
        """
        if self.is_captured():
            msg = (
                f"{self.id}: {what} while a graph is captured cannot be replayed: an "
                f"implementation that says it is capture-safe is not; report it to its author"
            )
            raise DeviceError(msg)


__all__ = ["Context"]
