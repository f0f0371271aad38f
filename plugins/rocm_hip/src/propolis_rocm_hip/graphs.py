"""
Graphs: a step's launches, recorded by HIP and queued again by one call.

The calls run once more while the stream records; nothing is executed.  Whatever cannot
be recorded (an allocation, waiting, a copy from the host) makes the step one that core
replays call by call.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip import events
from propolis_rocm_hip._release import release


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis_rocm_hip.context import Context


class HipGraph:
    """
    A recorded step.

    Args:
        context: the device's.
        graph: what the stream recorded.
        calls: the calls it was recorded from; they hold the tensors it works on.
    """

    def __init__(
        self, context: Context, graph: object, calls: Sequence[Callable[[], None]]
    ) -> None:
        self._context = context
        self._calls = calls
        self._handle = int(context.call("hipGraphInstantiateWithFlags", graph, 0))
        weakref.finalize(self, release, context, "hipGraphExecDestroy", self._handle)

    def __call__(self) -> None:
        """
        Queue the step.

        Raises:
            DeviceError: it, or something queued before it, failed.
        """
        with self._context.lock:
            self._context.call("hipGraphLaunch", self._handle, self._context.stream)


def record(context: Context, calls: Sequence[Callable[[], None]]) -> HipGraph | None:
    """
    Record calls that only launch; None, with a log line, when they do something else.

    Raises:
        DeviceLostError: the device failed for good.
    """
    with context.lock:
        graph, problem = _capture(context, calls)
        if isinstance(problem, DeviceLostError):
            raise problem
        if graph is None or problem is not None:
            events.ROCM_GRAPH_NOT_RECORDED.emit(
                device=context.id, calls=len(calls), reason=str(problem)
            )
            return None
        try:
            return HipGraph(context, graph, calls)
        finally:
            context.call("hipGraphDestroy", graph)


def _capture(
    context: Context, calls: Sequence[Callable[[], None]]
) -> tuple[object | None, Exception | None]:
    """What the stream recorded, and what went wrong."""
    with context.capture():
        # Thread-local: what other threads allocate meanwhile is no concern of the capture.
        mode = _ffi.hip().hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
        context.call("hipStreamBeginCapture", context.stream, mode)
        try:
            problem = _run(calls)
        finally:
            graph, ended = _end(context)
    return graph, problem or ended


def _run(calls: Sequence[Callable[[], None]]) -> Exception | None:
    """Run the calls; what one of them raises, without the frames, which hold tensors."""
    try:
        for call in calls:
            call()
    except Exception as exc:  # noqa: BLE001  (whatever an implementation raises)
        return exc.with_traceback(None)
    return None


def _end(context: Context) -> tuple[object | None, DeviceError | None]:
    """End the capture, which must be ended even when a call failed."""
    try:
        return context.call("hipStreamEndCapture", context.stream), None
    except DeviceError as exc:
        return None, exc.with_traceback(None)


__all__ = ["HipGraph", "record"]
