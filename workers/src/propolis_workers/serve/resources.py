"""What is told of a device while it serves: its memory, and who serves which op on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.dispatch import DispatchTable


if TYPE_CHECKING:
    from propolis.tensor import Device

# Seconds between two tellings of all: a step may take a thousandth of that.
_PAUSE: Final = 1.0
_PLACED: Final = ("device", "ops", "decomposed", "cpu_instead")


class Resources:
    """Tells how a device is, and all of it no oftener than somebody who looks wants to know."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._due = 0.0

    def told(self, *, at_once: bool) -> dict[str, Any]:
        """
        What may be of interest now.

        Args:
            at_once: all of it, also where it was told a moment ago.

        Returns:
            ``memory``: bytes in all (0 where that is unknown) and free (None likewise);
            ``placement``: who serves each op there, and which ops others serve and why; and
            ``fallbacks``: calls that fell to the CPU, and why; and ``quarantined``: implementations
            that failed and are not used. Nothing where all that was told a moment ago.

        Raises:
            DeviceLostError: the device failed for good.
        """
        now = time.monotonic()
        if now < self._due and not at_once:
            return {}
        self._due = now + _PAUSE
        device = self._device
        table = DispatchTable.of(device)
        placement = table.placement.as_dict()
        barred = table.quarantine.entries.values()
        free = device.guarded(device.memory.available)
        return {
            "memory": {"total": device.properties.total_memory, "free": free},
            "placement": {name: placement[name] for name in _PLACED},
            "fallbacks": placement["fallbacks"],
            "quarantined": [
                {"op": one.op, "plugin": one.source.plugin, "what": one.label, "reason": one.reason}
                for one in barred
            ],
        }


__all__ = ["Resources"]
