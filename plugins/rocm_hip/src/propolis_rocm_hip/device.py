"""An AMD GPU as a device of Propolis."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import TypeVar
from typing import cast

from propolis import Device
from propolis_rocm_hip import graphs
from propolis_rocm_hip import hardware
from propolis_rocm_hip.cache import CodeCache
from propolis_rocm_hip.context import Context
from propolis_rocm_hip.memory import RocmMemory
from propolis_rocm_hip.modules import ModuleStore
from propolis_rocm_hip.pinned import pinned_empty
from propolis_rocm_hip.streams import Event
from propolis_rocm_hip.streams import Stream


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Sequence

    import numpy as np

    from propolis import Config
    from propolis import DeviceProperties
    from propolis_rocm_hip.hardware import Hardware


T = TypeVar("T")


class RocmDevice(Device):
    """
    One AMD GPU.

    Attributes:
        memory: its allocator and copies.
        hardware: what it says of itself.
        context: its stream and lock, for plugins that call HIP libraries.
        stream: the stream's handle: everything on the device is queued there.
        warp_size: lanes of a wave, 32 or 64.
        compute_units: its compute units.
        modules: the kernels it has loaded.
        pool: the allocator, with its statistics.
    """

    memory: RocmMemory

    def __init__(self, described: Hardware, context: Context, config: Config) -> None:
        memory = RocmMemory(context, direct=config.direct_allocations)
        super().__init__(described.properties, memory, context.liveness)
        self.hardware = described
        self.context = context
        self.stream = context.stream
        self.warp_size = described.warp_size
        self.compute_units = described.compute_units
        self.pool = memory.pool
        cache = CodeCache.of(config)
        self.modules = ModuleStore(context, self.properties.arch, self.warp_size, cache)
        self._kept: dict[Callable[[RocmDevice], object], object] = {}

    def keep(self, make: Callable[[RocmDevice], T]) -> T:
        """
        What a plugin keeps for as long as the device lives, as a library's handle.

        Args:
            make: makes it of the device at the first call, and is what it is found by: a class,
                or a function.
        """
        found = self._kept.get(make)
        if found is None:
            with self.context.lock:
                found = self._kept.get(make)
                if found is None:
                    found = self._kept[make] = make(self)
        return cast("T", found)

    def record(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
        """
        Record calls as a graph; what is returned queues all of them at once.

        None where they do more than launch kernels.

        Raises:
            DeviceLostError: the device failed for good.
        """
        return graphs.record(self.context, calls)

    def event(self, *, timing: bool = False) -> Event:
        """A mark in a stream of this device."""
        return Event(self.context, timing=timing)

    def new_stream(self, priority: int = 0) -> Stream:
        """A queue beside the device's own."""
        return Stream(self.context, priority)

    def pinned_empty(self, nbytes: int) -> np.ndarray:
        """Page-locked host memory, as a 1-D uint8 array."""
        return pinned_empty(self.context, nbytes)


class RocmProvider:
    """
    The AMD GPUs of this machine.

    Args:
        config: the settings.
    """

    kind = hardware.KIND

    def __init__(self, config: Config) -> None:
        self._config = config

    def enumerate(self) -> Iterable[DeviceProperties]:
        """All that are visible."""
        return hardware.enumerate_gpus()

    def describe(self) -> Iterable[DeviceProperties]:
        """One of each architecture that the ROCm plugins are written for."""
        return hardware.described_gpus()

    def open(self, index: int) -> RocmDevice:
        """
        One of them.

        Raises:
            DeviceNotFoundError: it is not there.
            DeviceError: it cannot be used.
        """
        described = hardware.describe(index)
        context = Context(index, alone=hardware.count() == 1)
        return RocmDevice(described, context, self._config)


__all__ = ["RocmDevice", "RocmProvider"]
