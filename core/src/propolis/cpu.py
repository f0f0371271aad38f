"""The CPU as a device: host memory, always there, owned by core."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import numpy as np

from propolis.device import Device
from propolis.device import DeviceProperties
from propolis.device import Memory
from propolis.errors import OutOfMemoryError
from propolis.layout import Layout
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from propolis.device import Storage
    from propolis.dtypes import DType
    from propolis.layout import Shape


class CpuStorage:
    """Host bytes, held by a contiguous numpy array of any dtype."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: np.ndarray) -> None:
        self.buffer = buffer

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.buffer.nbytes

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        return self.buffer.ctypes.data

    @property
    def bytes(self) -> np.ndarray:
        """The same memory as a 1-D uint8 array."""
        return self.buffer.reshape(-1).view(np.uint8)


class CpuMemory(Memory):
    """Host memory through numpy's allocator."""

    def allocate(self, nbytes: int) -> Storage:
        """Uninitialised host memory."""
        try:
            return CpuStorage(np.empty(nbytes, np.uint8))
        except MemoryError as exc:
            msg = f"cpu: {nbytes} bytes are more than the free host memory"
            raise OutOfMemoryError(msg) from exc

    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Copy host bytes into host storage."""
        _bytes(target)[offset : offset + source.nbytes] = source

    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """Copy host bytes out of host storage."""
        target[:] = _bytes(source)[offset : offset + target.nbytes]


class CpuDevice(Device):
    """The host CPU."""

    def __init__(self) -> None:
        super().__init__(cpu_properties(), CpuMemory())
        self.threads = len(os.sched_getaffinity(0))

    def empty(self, shape: Shape, dtype: DType) -> Tensor:
        """A contiguous tensor with undefined elements."""
        # The array that numpy allocates is storage and view at once: an op call
        # on small tensors is allowed 5 us in all.
        if dtype.is_block:
            return super().empty(shape, dtype)
        try:
            array = np.empty(shape, dtype.numpy)
        except (MemoryError, ValueError) as exc:
            msg = f"cpu: a tensor of shape {shape} and dtype {dtype} exceeds the free host memory"
            raise OutOfMemoryError(msg) from exc
        return Tensor(CpuStorage(array), Layout.contiguous(shape), dtype, self, array)


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
