"""Memory that implementations take turns to work in: as much as calls have needed so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes


if TYPE_CHECKING:
    from propolis import Storage
    from propolis import Tensor
    from propolis_rocm_hip.device import RocmDevice


def space_bytes(wanted: int) -> int:
    """
    What :meth:`Space.reserve` allocates for so many bytes: a power of two, so that it seldom grows.

    >>> space_bytes(5_000_000), space_bytes(0)
    (8388608, 0)
    """
    return 1 << max(wanted - 1, 1 << 16).bit_length() if wanted else 0


class Space:
    """
    A device's, found by :meth:`RocmDevice.keep`; the one stream keeps its users apart.

    Args:
        device: keeps it.
    """

    def __init__(self, device: RocmDevice) -> None:
        del device  # it keeps this object, and is given again where memory is allocated
        self._held: list[Tensor] = []

    def reserve(self, device: RocmDevice, wanted: int) -> int:
        """The address of what :meth:`storage` gives."""
        return self.storage(device, wanted).ptr

    def storage(self, device: RocmDevice, wanted: int) -> Storage:
        """
        At least so many bytes, of any content.

        A captured step goes on using what it was given, so memory that has become too small is
        kept; all together is less than twice the largest.

        Raises:
            OutOfMemoryError: the device has less.
        """
        with device.context.lock:
            if not self._held or self._held[-1].nbytes < wanted:
                self._held.append(device.empty((space_bytes(wanted),), dtypes.u8))
            return self._held[-1].storage


__all__ = ["Space", "space_bytes"]
