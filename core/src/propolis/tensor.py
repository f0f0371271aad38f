"""
Tensors, and the devices that they are on: each knows the other, so they stand together.

A tensor is storage + layout + dtype on one device.  It computes nothing itself: its views are
changes of layout, and everything else is an op of :mod:`propolis.ops`.  A plugin that brings
hardware subclasses :class:`Device` and :class:`~propolis.storage.Memory`; the CPU's, in
:mod:`propolis.cpu`, are the shortest example.
"""

from __future__ import annotations

import gc
import weakref
from threading import get_ident
from typing import TYPE_CHECKING
from typing import Any
from typing import ParamSpec
from typing import Protocol
from typing import TypeVar

import numpy as np

from propolis import dlpack
from propolis import dtypes
from propolis import inflight
from propolis.errors import DTypeError
from propolis.errors import OutOfMemoryError
from propolis.errors import ShapeError
from propolis.errors import UsageError
from propolis.layout import Layout
from propolis.layout import keeps_blocks
from propolis.layout import normalize_dim
from propolis.layout import whole_numbers
from propolis.liveness import Liveness
from propolis.storage import CpuStorage
from propolis.storage import DeviceProperties
from propolis.storage import SharedStorage
from propolis.storage import flat_base
from propolis.wording import size_of


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis.dtypes import DType
    from propolis.errors import DeviceLostError
    from propolis.inflight import Launch
    from propolis.layout import Shape
    from propolis.storage import Memory
    from propolis.storage import Step
    from propolis.storage import Storage


P = ParamSpec("P")
R = TypeVar("R")


class Dispatch(Protocol):
    """What devices, tensors and ops ask of a device's dispatch table."""

    @property
    def bound(self) -> Mapping[str, Mapping[Any, Callable[..., None]]]:
        """What calls look up: op -> dispatch key -> what runs it."""

    def bind(self, spec: Any, key: Any) -> Callable[..., None]:
        """What runs the op for this key, once nothing in ``bound`` does."""

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy, by the op ``copy``."""

    def set_apart(self, spec: Any, key: Any, inputs: Sequence[Tensor]) -> Mapping[int, Tensor]:
        """Copies of inputs that a call writes over, by ``id``; none where it may do so."""

    def lost(self) -> None:
        """Learn that the device failed for good: each call is to meet the error."""


class Device:
    """
    One piece of hardware.  It owns its memory and, once resolved, its dispatch table.

    Attributes:
        properties: what the hardware says of itself.
        memory: its allocator and copies.
        liveness: whether it still works; whoever calls its driver asks and tells it.
        table: who serves each op here, a ``DispatchTable``; set by the runtime that opened it.
        threads: host threads that implementations may use for one call.
        checks_memory: whether :meth:`expect_room` refuses anything.
        launched: ran the last call, which the device may still be at; None after a wait.
        steps: those that are being captured, by thread.
    """

    table: Dispatch
    launched: Launch | None = None

    def __init__(
        self, properties: DeviceProperties, memory: Memory, liveness: Liveness | None = None
    ) -> None:
        """
        Describe the device.

        Args:
            properties: what the hardware says of itself.
            memory: its allocator and copies.
            liveness: what those who call its driver know of its life; None where core is all
                who asks.
        """
        self.liveness = liveness or Liveness(properties.id)
        # Whatever outlives the device (its allocator, until the last tensor is freed) knows it.
        resolve_anew = weakref.WeakMethod(self._resolve_anew)
        self.liveness.then = lambda: (method := resolve_anew()) and method()
        self.id = properties.id
        self.properties = properties
        self.memory = memory
        self.kind = properties.kind
        self.threads = 1
        self.checks_memory = True
        self.steps: dict[int, Step] = {}

    def empty(self, shape: Shape, dtype: DType) -> Tensor:
        """
        A contiguous tensor with undefined elements.

        Raises:
            ShapeError: a size is negative or no whole number.
            DTypeError: a row is not a whole number of blocks, or it is none of our dtypes.
            OutOfMemoryError: the device has too little free memory.
            DeviceLostError: the device failed for good.
        """
        if not isinstance(dtype, dtypes.DType):
            msg = f"a tensor's dtype is {dtype!r}; supported: those of propolis.dtypes, as f32"
            raise DTypeError(msg)
        layout = Layout.contiguous(shape)
        if dtype.is_block:
            dtype.nbytes(layout.shape[-1] if layout.shape else 1)  # a row is made of whole blocks
            nbytes = dtype.nbytes(layout.numel)
        else:
            nbytes = layout.numel * dtype.block_bytes
        storage = self.liveness.guarded(self.memory.allocate, nbytes)
        if self.steps and (step := self.steps.get(get_ident())):
            step.made(storage)
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
            gc.collect()  # graphs that nobody uses may hold memory in cycles
            free = self.guarded(self.memory.available)
        if free is not None and nbytes > free:
            msg = (
                f"{what} needs {size_of(nbytes)} of memory, and {size_of(free)} are free on "
                f"{self.id}: {remedy}; PROPOLIS_MEMORY_CHECK=0 tries all the same"
            )
            raise OutOfMemoryError(msg)

    def copy_in(self, target: Storage, offset: int, source: np.ndarray) -> None:
        """Copy a contiguous 1-D uint8 host array to byte ``offset`` of ``target``."""
        if self.steps and (step := self.steps.get(get_ident())):
            step.filled(target)
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
        return self.liveness.guarded(call, *args, **kwargs)

    @property
    def failure(self) -> DeviceLostError | None:
        """What the device failed with for good; None while it works."""
        return self.liveness.failure

    def lost(self, error: DeviceLostError) -> None:
        """Mark the device lost: every later call, op or copy, raises at once and asks no driver."""
        self.liveness.lost(error)

    def expect_alive(self) -> None:
        """
        Check that the device is not lost.

        Raises:
            DeviceLostError: it is.
        """
        if self.liveness.failure is not None:
            self.liveness.expect()

    def _resolve_anew(self) -> None:
        """Let every op be resolved anew, so that each call meets the error."""
        if hasattr(self, "table"):  # it may be lost while it is being opened
            self.table.lost()

    def __repr__(self) -> str:
        return f"<Device {self.id} {self.properties.name} ({self.properties.arch})>"


class Tensor(dlpack.Exchanged):
    """
    An n-dimensional array of one dtype on one device.

    Attributes:
        storage: the bytes.
        layout: shape, strides and offset in elements.
        dtype: the element type.
        device: where the bytes are.
        prepared: what implementations made of a weight at load, by the function that made
            it (see :meth:`propolis.dispatch.DispatchTable.prepare`); empty for other
            tensors.
    """

    __slots__ = ("__weakref__", "_array", "device", "dtype", "layout", "prepared", "storage")

    storage: Storage
    device: Device

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        dtype: DType,
        device: Device,
        array: np.ndarray | None = None,
    ) -> None:
        self.storage = storage
        self.layout = layout
        self.dtype = dtype
        self.device = device
        self.prepared: Mapping[object, object] = {}
        self._array = array

    @property
    def shape(self) -> Shape:
        """The size of each dimension, in elements."""
        return self.layout.shape

    @property
    def strides(self) -> Shape:
        """Elements between neighbours along each dimension."""
        return self.layout.strides

    @property
    def numel(self) -> int:
        """The number of elements."""
        return self.layout.numel

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take when contiguous."""
        return self.dtype.nbytes(self.layout.numel)

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie in row-major order without gaps."""
        return self.layout.is_contiguous

    @property
    def ptr(self) -> int:
        """The device address of the first element."""
        return self.storage.ptr + self.dtype.nbytes(self.layout.offset)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"<Tensor {shape} {self.dtype} on {self.device.id}>"

    @classmethod
    def from_numpy(cls, array: np.ndarray, device: Device | str | None = None) -> Tensor:
        """
        A tensor with the elements of ``array``.

        On the CPU it shares the array's memory, unless its strides are negative or
        not multiples of the item size; on another device it is a copy.

        Args:
            array: of a numpy dtype that has a :class:`~propolis.dtypes.DType`.
            device: or an id of the default runtime's; its CPU when None.

        Raises:
            DTypeError: it is no array, or masked, or there is no such dtype.
        """
        array = dtypes.plain_array(array)
        device = opened(device)
        dtype = dtypes.from_numpy(array.dtype)
        if device.kind != "cpu":
            return _upload(np.ascontiguousarray(array), array.shape, dtype, device)
        size = array.itemsize
        if any(s < 0 or s % size for s in array.strides):
            array = np.ascontiguousarray(array)
        strides = tuple(s // size for s in array.strides)
        storage = SharedStorage(flat_base(array))
        return cls(storage, Layout(array.shape, strides), dtype, device, array)

    @classmethod
    def from_blocks(
        cls, raw: np.ndarray, dtype: DType, shape: Shape, device: Device | str | None = None
    ) -> Tensor:
        """
        A row-major tensor of any dtype over raw bytes, as weight files hold them.

        Args:
            raw: contiguous 1-D uint8 array; on the CPU the tensor shares it.
            dtype: plain or block format.
            shape: in elements; the last size is a multiple of the block size.
            device: or an id of the default runtime's; its CPU when None.

        Raises:
            ShapeError: the shape does not fit the bytes.
            DTypeError: a row is not a whole number of blocks, or ``raw`` is no such array.
        """
        raw = dtypes.plain_array(raw, "from_blocks")
        if raw.dtype != np.uint8 or raw.ndim != 1 or not raw.flags.c_contiguous:
            msg = f"from_blocks: raw is {raw.dtype} of shape {raw.shape}; it must be a contiguous "
            msg += "1-D uint8 array: np.ascontiguousarray(raw).reshape(-1).view(np.uint8)"
            raise DTypeError(msg)
        device = opened(device)
        layout = Layout.contiguous(shape)
        row = dtype.nbytes(shape[-1] if shape else 1)
        expected = layout.numel // max(shape[-1] if shape else 1, 1) * row
        if expected != raw.nbytes:
            msg = f"{dtype} of shape {shape} takes {expected} bytes, got {raw.nbytes}"
            raise ShapeError(msg)
        if device.kind != "cpu":
            return _upload(raw, shape, dtype, device)
        return cls(SharedStorage(raw), layout, dtype, device)

    @property
    def array(self) -> np.ndarray:
        """
        The elements as a numpy view, for implementations on the CPU.

        Of a block format: the raw bytes, with the last dimension counted in bytes.

        Raises:
            DTypeError: the tensor is not on the CPU (``numpy()`` copies it there).
        """
        if self._array is None:
            self._array = self._view()
        return self._array

    def _view(self) -> np.ndarray:
        storage, layout, dtype = self.storage, self.layout, self.dtype
        if not isinstance(storage, CpuStorage):
            msg = f"{self!r} has no host memory: use .numpy() for a copy of it"
            raise DTypeError(msg)
        start = dtype.nbytes(layout.offset)
        if dtype.is_block:
            blocks = (*layout.shape[:-1], dtype.nbytes(layout.shape[-1]))
            strides = (*(dtype.nbytes(s) for s in layout.strides[:-1]), 1)
            return np.lib.stride_tricks.as_strided(storage.bytes[start:], blocks, strides)
        if not layout.numel:
            return np.empty(layout.shape, dtype.numpy)
        size = dtype.block_bytes
        steps = None if layout.is_contiguous else tuple(s * size for s in layout.strides)
        return np.ndarray(layout.shape, dtype.numpy, storage.bytes, start, steps)

    def numpy(self) -> np.ndarray:
        """
        The elements as a numpy array: a view on the CPU, a copy from other devices.

        Of a block format: the raw bytes, with the last dimension counted in bytes
        (:func:`propolis.ops.dequantize` gives the values).
        """
        if self.device.kind == "cpu":
            return self.array
        source = self.contiguous()
        raw = np.empty(source.nbytes, np.uint8)
        self.device.copy_out(raw, source.storage, self.dtype.nbytes(source.layout.offset))
        if self.dtype.is_block:
            return raw.reshape(*self.shape[:-1], self.dtype.nbytes(self.shape[-1]))
        return raw.view(self.dtype.numpy).reshape(self.shape)

    def to(self, device: Device | str) -> Tensor:
        """This tensor on ``device``, or on the default runtime's of that id: itself or a copy."""
        if (device := opened(device)) is self.device:
            return self
        host = self.numpy()
        if self.dtype.is_block:
            return Tensor.from_blocks(host.reshape(-1), self.dtype, self.shape, device)
        return Tensor.from_numpy(host, device)

    def assign(self, array: np.ndarray) -> None:
        """
        Overwrite all elements, in place, from host memory.

        Args:
            array: same shape and numpy dtype as this contiguous tensor.

        Raises:
            ShapeError: the shapes differ, or this tensor is a strided view.
            DTypeError: the dtypes differ, or it is no array, or masked.
            UsageError: this tensor's memory is read-only.
        """
        if not self.is_contiguous:
            msg = f"assign: {self!r} has strides {self.strides}; only contiguous tensors can"
            raise ShapeError(msg)
        array = dtypes.plain_array(array, "assign")
        if (array.shape, array.dtype) != (self.shape, self.dtype.numpy):
            msg = f"assign: an array of {array.dtype} and {array.shape} does not fit {self!r}"
            raise (DTypeError if array.shape == self.shape else ShapeError)(msg)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.device.copy_in(self.storage, self.dtype.nbytes(self.layout.offset), raw)

    def item(self) -> Any:
        """
        The one element as a Python number (waits for the device).

        Raises:
            ShapeError: the tensor has none or several.
        """
        if self.numel != 1:
            msg = f"item: {self!r} has {self.numel} elements, not 1; .numpy() gives them all"
            raise ShapeError(msg)
        return self.numpy().item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __reduce__(self) -> Any:
        msg = f"{self!r} is of a device's memory: ops.copy copies it, and .numpy() can be pickled"
        raise UsageError(msg)

    @classmethod
    def from_dlpack(
        cls, source: Any, device: Device | str | None = None, *, copy: bool | None = None
    ) -> Tensor:
        """
        A tensor with the elements of any that has ``__dlpack__``: torch's, JAX's, CuPy's ...

        It shares memory where :meth:`from_numpy` does; what is read-only stays so.

        Args:
            source: the tensor or array; if it is on a GPU its library copies it.
            device: or an id of the default runtime's; its CPU when None.
            copy: True for memory of its own, False for the same or an error.

        Raises:
            BufferError: its library does not export it.
            DTypeError: it is masked, or no dtype here has its elements; the message names them.
            ValueError: a copy is needed, and ``copy`` is False.
        """
        array = dlpack.imported(source, copy)
        tensor = cls.from_numpy(array, device)
        if copy is False and array.size and tensor.ptr != array.ctypes.data:
            msg = f"from_dlpack: {tensor!r} cannot share its memory: leave out copy=False"
            raise ValueError(msg)
        return tensor

    # -- views -----------------------------------------------------------------

    def reshape(self, *shape: int | Shape) -> Tensor:
        """The same elements under another shape, one size may be -1; copies a strided view."""
        layout = self.layout
        if not layout.is_contiguous:
            return self.contiguous().reshape(*shape)
        return self._with_layout(layout.reshape(whole_numbers("reshape:", shape)))

    def permute(self, *dims: int | Shape) -> Tensor:
        """The dimensions in another order (a view)."""
        return self._with_layout(self.layout.permute(whole_numbers("permute:", dims)))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two dimensions exchanged (a view)."""
        dims = list(range(len(self.shape)))
        dim0, dim1 = (normalize_dim("transpose", d, len(dims)) for d in (dim0, dim1))
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        return self.permute(*dims)

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """The slice ``[start, start + length)`` of one dimension (a view)."""
        return self._with_layout(self.layout.narrow(dim, start, length))

    def broadcast_to(self, *shape: int | Shape) -> Tensor:
        """Size-1 and missing leading dimensions repeated up to ``shape`` (a view)."""
        return self._with_layout(self.layout.broadcast_to(whole_numbers("broadcast_to:", shape)))

    def unsqueeze(self, dim: int) -> Tensor:
        """A dimension of size 1 inserted before ``dim`` (a view)."""
        return self._with_layout(self.layout.unsqueeze(dim))

    def squeeze(self, dim: int) -> Tensor:
        """A dimension of size 1 dropped (a view)."""
        return self._with_layout(self.layout.squeeze(dim))

    def unflatten(self, dim: int, inner: int) -> Tensor:
        """One dimension split in two, the second of size ``inner`` (a view)."""
        return self._with_layout(self.layout.unflatten(dim, inner))

    def contiguous(self) -> Tensor:
        """This tensor when it is contiguous, else a row-major copy (op ``copy``)."""
        if self.layout.is_contiguous:
            return self
        return self.device.table.copy(self)

    @property
    def packed(self) -> Mapping[object, object]:
        """The name of :attr:`prepared` in API level 1's first plugins."""
        return self.prepared

    def with_prepared(self, prepared: Mapping[object, object]) -> Tensor:
        """The same tensor, carrying what an implementation prepared of it."""
        tensor = Tensor(self.storage, self.layout, self.dtype, self.device, self._array)
        tensor.prepared = {**self.prepared, **prepared}
        return tensor

    def _with_layout(self, layout: Layout) -> Tensor:
        block = self.dtype.block_size
        if block > 1 and not keeps_blocks(layout, block):
            msg = (
                f"a view of {self!r} with shape {layout.shape}, strides {layout.strides} and "
                f"offset {layout.offset} would cut blocks of {block} elements; "
                f"ops.dequantize it first"
            )
            raise DTypeError(msg)
        return Tensor(self.storage, layout, self.dtype, self.device)


def _upload(array: np.ndarray, shape: Shape, dtype: DType, device: Device) -> Tensor:
    tensor = device.empty(shape, dtype)
    device.copy_in(tensor.storage, 0, array.reshape(-1).view(np.uint8))
    return tensor


def opened(device: Device | str | None) -> Device:
    """A device, or the one of that id that the default runtime opens; its CPU when None."""
    return device if isinstance(device, Device) else _open(device)


def _cannot_open(device: str | None) -> Device:
    msg = f"no runtime opens device {device}: give an open one"
    raise UsageError(msg)


_open: Callable[[str | None], Device] = _cannot_open


def set_opener(opener: Callable[[str | None], Device]) -> None:
    """Let ``opener`` open devices by id, and give that of tensors that are made without one."""
    global _open  # noqa: PLW0603  (one per process is its meaning)
    _open = opener


__all__ = ["Device", "Dispatch", "Tensor", "set_opener"]
