"""Whether a device still works: the one place that knows, and that everybody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import ParamSpec
from typing import TypeVar

from propolis import events
from propolis.errors import DeviceLostError


if TYPE_CHECKING:
    from collections.abc import Callable


P = ParamSpec("P")
R = TypeVar("R")


class Living:
    """
    What may fail for good.

    Attributes:
        id: what users call it.
        failure: what it failed with for good; None while it works.
    """

    def __init__(self, name: str) -> None:
        self.id = name
        self.failure: DeviceLostError | None = None

    def guarded(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """
        Ask the driver something, unless the device is lost; learn from the answer if it is.

        Core's allocations, copies and waits go this way.  A plugin's own (streams, events,
        graphs) should: ``device.guarded(stream.synchronize)``.

        Raises:
            DeviceLostError: the device is lost, by this call or since an earlier one.
        """
        self.expect_alive()
        try:
            return call(*args, **kwargs)
        except DeviceLostError as exc:
            self.lost(exc)
            raise

    def lost(self, error: DeviceLostError) -> None:
        """Mark the device lost: every later call, op or copy, raises at once and asks no driver."""
        if self.failure is not None:
            return
        self.failure = error
        events.DEVICE_LOST.emit(device=self.id, reason=str(error))
        self.on_lost()

    def expect_alive(self) -> None:
        """
        Check that the device is not lost.

        Raises:
            DeviceLostError: it is.
        """
        if self.failure is not None:
            msg = f"{self.id} is lost: {self.failure}; only a new process can use it again"
            raise DeviceLostError(msg) from self.failure

    def on_lost(self) -> None:
        """Do what is to be done once, when it is lost."""
