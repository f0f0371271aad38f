"""Memory that implementations take turns to work in: as much as calls have needed so far."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import ClassVar
from typing import Final

from propolis import dtypes
from propolis.errors import DeviceError
from propolis.errors import OutOfMemoryError


if TYPE_CHECKING:
    from collections.abc import Iterator

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
    A device's, found by :meth:`RocmDevice.keep`.

    Its users take turns: what one has queued ends before what the next one queues, on the one
    stream, and while one queues several things that work in it no other thread does.

    Args:
        device: keeps it.
    """

    def __init__(self, device: RocmDevice) -> None:
        del device  # it keeps this object, and is given again where memory is allocated
        self._held: list[Tensor] = []

    def reserve(self, device: RocmDevice, wanted: int) -> int:
        """
        The address of at least so many bytes, for who holds the context's lock while queueing.

        A captured step goes on using what it was given, so memory that has become too small is
        kept; all together is less than twice the largest.

        Raises:
            OutOfMemoryError: the device has less, or a graph is captured and there is less so far.
        """
        return self.storage(device, wanted).ptr

    @contextmanager
    def lent(self, device: RocmDevice, wanted: int) -> Iterator[Storage]:
        """
        At least so many bytes, of any content, until the end: other threads wait, and queue later.

        Raises:
            OutOfMemoryError: the device has less.
        """
        with device.context.lock:
            yield self.storage(device, wanted)

    def storage(self, device: RocmDevice, wanted: int) -> Storage:
        """What :meth:`reserve` gives the address of, under the same conditions."""
        with device.context.lock:
            if not self._held or self._held[-1].nbytes < wanted:
                if device.context.is_captured():
                    # The same calls have been made before, to no avail: they do without again.
                    msg = f"{device.id}: {wanted} bytes are asked for while a graph is captured"
                    raise OutOfMemoryError(msg)
                self._held.append(device.empty((space_bytes(wanted),), dtypes.u8))
            return self._held[-1].storage


TILE_BYTES: Final = 64 << 20
"""
The most that is dequantised of a weight at once.

A larger weight is done in tiles of rows: products stay large enough to fill a card, and a tile is
still in the last cache (96 MiB of gfx1100, 256 of gfx942) when it is read again.
"""

_WIDTH: Final = 128
"""Rows of a tile are a multiple of it, unless it is the whole weight: products have such tiles."""


class Spare(Space):
    """
    One that other implementations of the op do without.

    Attributes:
        holds: what lies in it, as the error says where it is lacking.
    """

    holds: ClassVar[str]

    @contextmanager
    def lent(self, device: RocmDevice, wanted: int) -> Iterator[Storage]:
        """
        The same.

        Raises:
            DeviceError: the device has less.
        """
        with device.context.lock:
            try:
                memory = self.storage(device, wanted)
            except OutOfMemoryError as exc:
                raise lacking(device, self.holds, exc) from exc
            yield memory


class Weights(Spare):
    """Where such a tile lies: apart from :class:`Space`, which who dequantises may work in."""

    holds = "dequantised weights"


def tile_rows(n: int, depth: int, size: int) -> int:
    """
    Rows of a tile of a weight (n, depth), of values of ``size`` bytes: tiles are alike.

    >>> tile_rows(4096, 4096, 2), tile_rows(128256, 4096, 2), tile_rows(4680, 14336, 2)
    (4096, 8064, 1664)
    """
    most = max(TILE_BYTES // (depth * size) // _WIDTH, 1) * _WIDTH
    each = math.ceil(n / math.ceil(n / most))
    return min(-(-each // _WIDTH) * _WIDTH, n)


def lacking(device: RocmDevice, what: str, error: OutOfMemoryError) -> DeviceError:
    """The error where memory is lacking that only one implementation needs, and others do not."""
    return DeviceError(f"{device.id}: no memory for {what}: {error}")


__all__ = ["TILE_BYTES", "Space", "Spare", "Weights", "lacking", "space_bytes", "tile_rows"]
