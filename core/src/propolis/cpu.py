"""The CPU as a device: host memory, always there, owned by core."""

from __future__ import annotations

import os
import platform
from threading import get_ident
from typing import TYPE_CHECKING

import numpy as np

from propolis.dtypes import DType
from propolis.errors import OutOfMemoryError
from propolis.errors import ShapeError
from propolis.errors import UsageError
from propolis.host import free_memory
from propolis.host import usable_cores
from propolis.layout import Layout
from propolis.storage import BufferPool
from propolis.storage import CpuStorage
from propolis.storage import DeviceProperties
from propolis.storage import Memory
from propolis.tensor import Device
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from propolis.layout import Shape
    from propolis.storage import Storage


# Below this, malloc reuses memory by itself; above, it gives pages back to the
# system and faults them in again, which cost 20 % of a prefill.
POOLED_FROM = 64 * 1024


class CpuMemory(Memory):
    """Host memory through numpy's allocator; large buffers are reused."""

    def __init__(self) -> None:
        self._pool = BufferPool()

    def allocate(self, nbytes: int) -> Storage:
        """Uninitialised host memory, of ``nbytes`` bytes or somewhat more."""
        try:
            if nbytes >= POOLED_FROM:
                return CpuStorage(self._pool.take(nbytes), self._pool)
            return CpuStorage(np.empty(nbytes, np.uint8))
        except (MemoryError, OverflowError, ValueError) as exc:
            msg = f"cpu: {nbytes} bytes are more than the free host memory"
            raise OutOfMemoryError(msg) from exc

    def available(self) -> int | None:
        """What the system and the control groups of this process leave, and what is pooled."""
        free = free_memory()
        return None if free is None else free + self._pool.nbytes

    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Copy host bytes into host storage."""
        memory = _bytes(target)
        if not memory.flags.writeable:
            msg = (
                "cpu: this memory is read-only (a mapped file, or a read-only array): "
                "ops.copy makes a tensor that can be written"
            )
            raise UsageError(msg)
        memory[offset : offset + source.nbytes] = source

    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """Copy host bytes out of host storage."""
        target[:] = _bytes(source)[offset : offset + target.nbytes]


class CpuDevice(Device):
    """The host CPU."""

    def __init__(self) -> None:
        super().__init__(cpu_properties(), CpuMemory())
        self.threads = usable_cores()

    def empty(self, shape: Shape, dtype: DType) -> Tensor:
        """A contiguous tensor with undefined elements."""
        layout = Layout.contiguous(shape)
        if dtype.__class__ is not DType or dtype.is_block:  # refused there, or rare
            return super().empty(shape, dtype)
        nbytes = layout.numel * dtype.block_bytes
        try:
            if nbytes >= POOLED_FROM:
                storage = self.memory.allocate(nbytes)
                array = np.ndarray(layout.shape, dtype.numpy, _bytes(storage))
                if self.steps and (step := self.steps.get(get_ident())):
                    step.made(storage)
            else:
                # The array that numpy allocates is storage and view at once: an op call
                # on small tensors is allowed 5 us in all.
                array = np.empty(layout.shape, dtype.numpy)
                storage = CpuStorage(array)
        except ValueError as exc:  # a size or a rank that no array may have
            msg = f"cpu: shape {shape} of {dtype}: {exc}"
            raise ShapeError(msg) from exc
        return Tensor(storage, layout, dtype, self, array)


def cpu_properties() -> DeviceProperties:
    """What this machine's CPU says of itself."""
    return DeviceProperties(
        kind="cpu",
        index=0,
        name=_cpu_name(),
        arch=platform.machine(),
        total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _bytes(storage: Storage) -> np.ndarray:
    if not isinstance(storage, CpuStorage):
        msg = f"cpu: {type(storage).__name__} is not host storage"
        raise TypeError(msg)
    return storage.bytes


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  (procfs, not a path)
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux, or procfs is hidden: the machine type is name enough
    return platform.processor() or platform.machine()
