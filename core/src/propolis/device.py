"""
Devices, the memory they own, and the storage they hand out.

A plugin that brings hardware subclasses :class:`Device` and :class:`Memory`; the
CPU's, in :mod:`propolis.cpu`, are the shortest example.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import ParamSpec
from typing import Protocol
from typing import TypeVar

from propolis import events
from propolis import inflight
from propolis.errors import DeviceLostError
from propolis.errors import OutOfMemoryError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from collections.abc import Sequence

    import numpy as np

    from propolis.dispatch.table import DispatchTable
    from propolis.dtypes import DType
    from propolis.inflight import Launch
    from propolis.layout import Shape
    from propolis.tensor import Tensor


P = ParamSpec("P")
R = TypeVar("R")


class Storage(Protocol):
    """Bytes on a device, freed when the last reference goes."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    @property
    def ptr(self) -> int:
        """Address on the device."""


class Memory(ABC):
    """
    The allocator and the copies of one device, as ``propolis_storage`` returns it.

    Core calls it through the device (:meth:`Device.guarded`): what raises
    :class:`~propolis.errors.DeviceLostError` here marks the device lost.
    """

    @abstractmethod
    def allocate(self, nbytes: int) -> Storage:
        """
        Uninitialised storage of ``nbytes`` bytes (0 is allowed).

        Raises:
            OutOfMemoryError: the device has too little free memory.
        """

    @abstractmethod
    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Copy a contiguous 1-D uint8 host array to byte ``offset`` of ``target``."""

    @abstractmethod
    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """Copy from byte ``offset`` of ``source`` to a contiguous 1-D uint8 host array."""

    def available(self) -> int | None:
        """Bytes that can still be allocated, as far as is known; None, the default, where not."""
        return None

    def synchronize(self) -> None:  # noqa: B027  (memory without a queue needs none)
        """Return once all work queued on the device is done.  Nothing to do by default."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """
    What a device says of itself.

    Attributes:
        kind: the kind users type, for example ``"rocm"``.
        index: its number among devices of that kind, from 0.
        name: its marketing name.
        arch: its architecture, as implementations declare it (``"gfx1100"``,
            ``"x86_64"``).
        total_memory: bytes of memory, 0 when unknown.
        extra: further facts for people, for example ``{"compute_units": "96"}``.  They
            are in reports that users publish: nothing that identifies one card or its
            owner.  An entry ``"simulator"`` says that the device is no hardware.  A
            device far slower than its kind says ``"conformance_scale": "0.1"``: the suite then
            draws smaller sizes and fewer random cases.
    """

    kind: str
    index: int
    name: str
    arch: str
    total_memory: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What users type to choose the device: ``"cpu"``, ``"rocm:0"``."""
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"


class Device:
    """
    One piece of hardware.  It owns its memory and, once resolved, its dispatch table.

    Attributes:
        properties: what the hardware says of itself.
        memory: its allocator and copies.
        table: who serves each op here; set by the runtime that opened the device.
        threads: host threads that implementations may use for one call.
        checks_memory: whether :meth:`expect_room` refuses anything.
        failure: what it failed with for good; None while it works.
        launched: ran the last call, which the device may still be at; None after a wait.
    """

    table: DispatchTable
    launched: Launch | None = None

    def __init__(self, properties: DeviceProperties, memory: Memory) -> None:
        self.properties = properties
        self.memory = memory
        self.kind = properties.kind
        self.id = properties.id
        self.threads = 1
        self.checks_memory = True
        self.failure: DeviceLostError | None = None

    def empty(self, shape: Shape, dtype: DType) -> Tensor:
        """
        A contiguous tensor with undefined elements.

        Raises:
            ShapeError: a size is negative or no whole number.
            DTypeError: a row is not a whole number of blocks.
            OutOfMemoryError: the device has too little free memory.
            DeviceLostError: the device failed for good.
        """
        from propolis.layout import Layout  # noqa: PLC0415  (tensor imports device)
        from propolis.tensor import Tensor  # noqa: PLC0415

        layout = Layout.contiguous(shape)
        dtype.nbytes(layout.shape[-1] if layout.shape else 1)  # a row is made of whole blocks
        storage = self.guarded(self.memory.allocate, dtype.nbytes(layout.numel))
        return Tensor(storage, layout, dtype, self)

    def expect_room(self, nbytes: int, what: str, remedy: str) -> None:
        """
        Check that so much memory can still be had, before any of it is taken.

        A kernel that promises more memory than it has ends the process later, without a
        word; what is known beforehand to be too much is better refused.

        Args:
            nbytes: bytes that are about to be taken.
            what: what for, as a message begins: ``"a context of 8192 tokens"``.
            remedy: what to do where it does not fit.

        Raises:
            OutOfMemoryError: it does not fit; the message has both numbers.
        """
        if not self.checks_memory:
            return
        free = self.guarded(self.memory.available)
        if free is not None and nbytes > free:
            msg = (
                f"{what} needs {_size(nbytes)} of memory, and {_size(free)} are free on {self.id}: "
                f"{remedy}; PROPOLIS_MEMORY_CHECK=0 tries all the same"
            )
            raise OutOfMemoryError(msg)

    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Copy a contiguous 1-D uint8 host array to byte ``offset`` of ``target``."""
        self.guarded(self.memory.copy_in, target, offset, source)

    def copy_out(self, target: np.ndarray, source: Storage, offset: int) -> None:
        """Copy from byte ``offset`` of ``source`` to a contiguous 1-D uint8 host array."""
        self._wait(self.memory.copy_out, target, source, offset)

    def synchronize(self) -> None:
        """Return once all work queued on the device is done."""
        self._wait(self.memory.synchronize)

    def _wait(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call what returns when the device is done with what was launched."""
        launched = self.launched
        if launched is None or self.kind == "cpu":
            self.guarded(call, *args, **kwargs)
        else:
            self.guarded(inflight.after(launched), call, *args, **kwargs)
            self.launched = None

    def record(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None] | None:  # noqa: ARG002
        """
        Make one launch of many, where the device has graphs of its own.

        Core asks this of calls that it has captured and that all run here by
        implementations which are capture-safe: called again, they queue work and do
        nothing else.  What is returned queues the same work at once and keeps what it
        needs alive; None, the default, leaves the calls to be repeated one by one.

        Raises:
            DeviceLostError: the device failed for good.
        """
        return None

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
        if hasattr(self, "table"):  # it may be lost while it is being opened
            self.table.rebind()

    def expect_alive(self) -> None:
        """
        Check that the device is not lost.

        Raises:
            DeviceLostError: it is.
        """
        if self.failure is not None:
            msg = f"{self.id} is lost: {self.failure}; only a new process can use it again"
            raise DeviceLostError(msg) from self.failure

    def __repr__(self) -> str:
        return f"<Device {self.id} {self.properties.name} ({self.properties.arch})>"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"
