"""The device's memory as core sees it: storage from the allocator, copies on the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import Memory
from propolis_rocm_hip._release import release
from propolis_rocm_hip.allocator import CachingAllocator
from propolis_rocm_hip.staging import Returning
from propolis_rocm_hip.staging import Staging


if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from propolis import Storage
    from propolis_rocm_hip.allocator import Block
    from propolis_rocm_hip.context import Context


class RocmStorage:
    """
    Bytes on an AMD GPU.

    Attributes:
        ptr: their address there.
        nbytes: how many.
        context: the device they are on.
    """

    __slots__ = ("__weakref__", "_block", "_pool", "context", "nbytes", "ptr")

    def __init__(self, context: Context, pool: CachingAllocator, block: Block) -> None:
        self.ptr = block.ptr
        self.nbytes = block.nbytes
        self.context = context
        self._pool = pool
        self._block = block

    def __del__(self) -> None:
        self._pool.release(self._block)


class Segments:
    """hipMalloc and hipFree, for the allocator."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.id = context.id

    @property
    def capturing(self) -> bool:
        """Whether a graph is being captured."""
        return self._context.capturing is not None

    def allocate(self, nbytes: int) -> int:
        """Fresh memory of the device."""
        return int(self._context.call("hipMalloc", nbytes))

    def free(self, ptr: int) -> None:
        """Give a segment back, once the work that uses it is done."""
        release(self._context, "hipFree", ptr)

    def info(self) -> tuple[int, int]:
        """Bytes that are free on the device, and in all."""
        free, total = self._context.call("hipMemGetInfo")
        return int(free), int(total)


class RocmMemory(Memory):
    """
    Memory of one AMD GPU.

    Attributes:
        pool: the allocator, with its statistics.
    """

    def __init__(self, context: Context, *, direct: bool = False) -> None:
        self.context = context
        self._segments = Segments(context)
        self.pool = CachingAllocator(self._segments, direct=direct)
        self._staging = Staging(context)
        self._returning = Returning(context)

    def allocate(self, nbytes: int) -> RocmStorage:
        """
        Uninitialised memory of the device.

        Raises:
            OutOfMemoryError: there is too little.
            DeviceLostError: the device failed for good.
            DeviceError: a graph is being captured: its memory would be somebody else's at replay.
        """
        context = self.context
        if context.capturing is not None:
            context.refuse_capture(f"an allocation of {nbytes} bytes")
        return RocmStorage(context, self.pool, self.pool.allocate(nbytes))

    def available(self) -> int:
        """What the driver says is free, and what the allocator holds that nobody uses."""
        free, _ = self._segments.info()
        now = self.pool.statistics()
        return free + now.reserved - now.allocated

    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Queue a copy from the host; ``source`` may change as soon as this returns."""
        with self.context.lock:
            self.context.refuse_capture("a copy from the host")
            self._staging.upload(target.ptr + offset, source)

    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """Copy to the host, after everything queued before."""
        if not target.nbytes:
            return
        context = self.context
        with context.lock:
            context.refuse_capture("a copy to the host")
            context.call(
                "hipMemcpyDtoHAsync",
                target.ctypes.data,
                source.ptr + offset,
                target.nbytes,
                context.stream,
            )
        context.synchronize()

    def copy_out_later(
        self, source: Storage, offset: int, nbytes: int
    ) -> Callable[[], np.ndarray] | None:
        """Queue a copy to the host, and a mark behind it; None where it is much."""
        context = self.context
        with context.lock:
            context.refuse_capture("a copy to the host")
            return self._returning.copy(source.ptr + offset, nbytes)

    def synchronize(self) -> None:
        """Return once everything queued is done."""
        self.context.refuse_capture("waiting")
        self.context.synchronize()


__all__ = ["RocmMemory", "RocmStorage", "Segments"]
