"""Devices that are known and need not be present, to ask plugins what they declare for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.errors import DeviceError
from propolis.host import usable_cores
from propolis.storage import Memory
from propolis.tensor import Device


if TYPE_CHECKING:
    import numpy as np

    from propolis.storage import DeviceProperties
    from propolis.storage import Storage


class DescribedMemory(Memory):
    """The memory of a device that is not there: every use of it is an error."""

    def __init__(self, properties: DeviceProperties) -> None:
        self._properties = properties

    def allocate(self, nbytes: int) -> Storage:
        """There is nothing to allocate from."""
        del nbytes
        raise self._absent("nothing can be allocated")

    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """There is nothing to copy to."""
        del target, offset, source
        raise self._absent("nothing can be copied to it")

    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """There is nothing to copy from."""
        del target, source, offset
        raise self._absent("nothing can be copied from it")

    def _absent(self, what: str) -> DeviceError:
        p = self._properties
        return DeviceError(
            f"{p.id} ({p.arch}) is described here and not present: {what}; propolis_ops is to "
            f"declare from device.kind and device.properties alone"
        )


class DescribedDevice(Device):
    """
    A device that is known and need not be present, to ask plugins what they declare for it.

    Its properties are real and its memory is none: whoever allocates gets a
    :class:`~propolis.errors.DeviceError`.
    """

    def __init__(self, properties: DeviceProperties) -> None:
        super().__init__(properties, DescribedMemory(properties))
        self.threads = usable_cores()  # no plugin is to limit this process
