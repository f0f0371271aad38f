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


class Liveness:
    """
    What is known of a device's life; the device and whoever calls its driver share it.

    Attributes:
        id: what users call the device.
        failure: what it failed with for good; None while it works.
        then: called once it is known to be lost.
    """

    __slots__ = ("_told", "failure", "id", "then")

    def __init__(self, name: str) -> None:
        self.id = name
        self.failure: DeviceLostError | None = None
        self.then: Callable[[], None] | None = None
        self._told = False

    def guarded(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """
        Ask the driver something, unless the device is lost; learn from the answer if it is.

        Raises:
            DeviceLostError: the device is lost, by this call or since an earlier one.
        """
        if self.failure is not None:
            self.expect()
        try:
            return call(*args, **kwargs)
        except DeviceLostError as exc:
            self.lost(exc)
            raise

    def lost(self, error: DeviceLostError) -> None:
        """Mark the device lost: every later call raises at once and asks no driver."""
        if self._told:
            return
        self._told = True
        self.failure = self.failure or error
        events.DEVICE_LOST.emit(device=self.id, reason=str(self.failure))
        if self.then is not None:
            self.then()

    def expect(self) -> None:
        """
        Check that the device is not lost.

        Raises:
            DeviceLostError: it is.
        """
        if self.failure is not None:
            msg = f"{self.id} is lost: {self.failure}; only a new process can use it again"
            raise DeviceLostError(msg) from self.failure


__all__ = ["Liveness"]
