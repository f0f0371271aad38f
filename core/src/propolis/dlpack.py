"""
DLPack: memory shared with other libraries, as its specification (version 1) lays it out.

A capsule outlives whoever made it and may be let go of in any thread, even after Python has
ended, so what owns it must be C: numpy makes the capsules here, and takes those of others.  It
knows neither bf16 nor f8 nor other devices, and so it is given integers of the same size, while
the true dtype and device are written into the struct that its capsule holds, or read from it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.errors import DTypeError
from propolis.errors import UsageError


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.layout import Shape


class Exchanged:
    """What numpy and other libraries ask of a tensor, and what it takes of the tensor itself."""

    __slots__ = ()

    device: Any
    dtype: DType
    storage: Any

    @property
    def shape(self) -> Shape:
        """In elements."""
        raise NotImplementedError

    @property
    def strides(self) -> Shape:
        """In elements."""
        raise NotImplementedError

    @property
    def ptr(self) -> int:
        """The address of the first element."""
        raise NotImplementedError

    def numpy(self) -> np.ndarray:
        """A view on the CPU, a copy from other devices."""
        raise NotImplementedError

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """
        What ``np.asarray`` and numpy's functions see: :meth:`numpy`, cast where they ask for it.

        Raises:
            ValueError: that needs a copy, and ``copy`` is False.
            DTypeError: a block format, which holds no numbers one by one.
        """
        if self.dtype.is_block:
            msg = f"{self!r} is no array of numbers: ops.dequantize gives them, .numpy() the bytes"
            raise DTypeError(msg)
        away = self.device.kind != "cpu"
        if copy is False and (away or dtype not in (None, self.dtype.numpy)):
            wanted = self.dtype.numpy if dtype is None else dtype
            msg = f"{self!r} becomes an array of {wanted} by a copy alone: leave out copy=False"
            raise ValueError(msg)
        return np.array(self.numpy(), dtype, copy=None if away else copy)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """
        A DLPack capsule of the same memory: of every plain dtype, on the CPU and on ROCm devices.

        Args:
            stream: where the consumer reads on a ROCm device.  Work queued here is waited for,
                unless it is -1.
            max_version: of DLPack, that the consumer knows; from (1, 0) on capsules can be
                read-only.
            dl_device: here, when None, or ``(1, 0)`` for the CPU.
            copy: True for memory of its own, False for the same or an error.

        Raises:
            BufferError: DLPack cannot say what this is, or not without a copy.
            UsageError: the device has no such stream.
        """
        return exported(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_of(self)


_CPU: Final = (1, 0)
_DEVICES: Final = {"cpu": 1, "rocm": 10}
"""Device types by kind."""
_HOST: Final = frozenset({1, 3, 11, 13})
"""Device types whose memory the host reads: plain, pinned by CUDA or ROCm, managed."""

_KINDS: Final = (
    *("int", "uint", "float", "opaque", "bfloat16", "complex", "bool"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
)
"""Type codes, in their order; narrow floats by the names that numpy knows them by."""
_CODES: Final = {
    d: (_KINDS.index(d.numpy.name if d.numpy.name in _KINDS else d.kind), 8 * d.block_bytes)
    for d in dtypes.ALL
    if not d.is_block
}
"""Type code and bits."""
_DTYPES: Final = {code: dtype for dtype, code in _CODES.items()}

_COPIED: Final = 2
"""The flag of memory that belongs to the consumer alone."""


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Unversioned(ctypes.Structure):
    """``DLManagedTensor``, of before version 1."""

    _fields_ = (
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    )


_LAYOUTS: Final[dict[bytes, type[_Versioned | _Unversioned]]] = {
    b"dltensor_versioned": _Versioned,
    b"dltensor": _Unversioned,
}
_is_valid: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def device_of(tensor: Exchanged) -> tuple[int, int]:
    """
    DLPack's device type and index.

    Raises:
        BufferError: DLPack cannot say what the tensor holds, or where it is.
    """
    device = tensor.device
    if tensor.dtype.is_block:
        msg = f"{tensor!r} cannot be exchanged by DLPack, which has no block formats: "
        msg += "ops.dequantize gives the values, .numpy() the bytes"
        raise BufferError(msg)
    if device.kind not in _DEVICES:
        msg = f"{tensor!r} cannot be exchanged by DLPack, which knows the devices "
        msg += f"{', '.join(_DEVICES)}: .to(cpu) copies it, .numpy() gives it as an array"
        raise BufferError(msg)
    return _DEVICES[device.kind], device.properties.index


def exported(
    tensor: Exchanged,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """
    A capsule for the consumer: see :meth:`Exchanged.__dlpack__`.

    Raises:
        BufferError: it cannot be exported so.
        UsageError: the device has no such stream.
    """
    home = device_of(tensor)
    target = home if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if target not in (home, _CPU):
        msg = f"{tensor!r} cannot go to DLPack device {target}; supported: {sorted({home, _CPU})}"
        raise BufferError(msg)
    if target != home and copy is False:
        msg = f"{tensor!r} reaches the CPU by a copy alone: leave out copy=False"
        raise BufferError(msg)
    _check_stream(stream, target)
    copied = copy is True or target != home
    if target == _CPU:
        array = tensor.numpy()  # from another device a copy already
        if copy and home == _CPU:
            array = array.copy()
    else:
        if copy:
            tensor = tensor.device.table.copy(tensor)
        if stream != -1:
            # Waiting here is right for any stream that the consumer may use.
            tensor.device.synchronize()
        array = np.asarray(_Elsewhere(tensor))
    versioned = max_version is not None and max_version[0] >= 1
    if not versioned and not array.flags.writeable:
        msg = f"{tensor!r} is read-only, which DLPack can say from version 1 on: "
        msg += "export it with max_version=(1, 0) or copy=True"
        raise BufferError(msg)
    carried = array.view(f"u{array.itemsize}")
    capsule = carried.__dlpack__(max_version=(1, 0) if versioned else None)
    managed = _managed(capsule)
    struct = managed.dl_tensor
    struct.device_type, struct.device_id = target
    struct.code, struct.bits = _CODES[tensor.dtype]
    if copied and isinstance(managed, _Versioned):
        managed.flags |= _COPIED
    return capsule


def imported(source: Any, copy: bool | None) -> np.ndarray:
    """
    The elements of another library's tensor, in the same memory where the host can read it.

    Args:
        source: has ``__dlpack__`` and ``__dlpack_device__``.
        copy: True for memory of one's own, False for the same or an error.

    Raises:
        BufferError: its library does not export it, not to the CPU, or breaks the protocol.
        DTypeError: ``source`` has no DLPack, or elements without a dtype here.
        ValueError: it can be had by a copy alone, and ``copy`` is False.
    """
    able = hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")
    if not able or isinstance(source, np.ma.MaskedArray):  # whose mask would be lost
        msg = f"from_dlpack: a {type(source).__name__} has no __dlpack__; supported: tensors and "
        msg += "arrays of libraries that have it"
        raise DTypeError(msg)
    where = source.__dlpack_device__()
    away = where[0] not in _HOST
    if away and copy is False:
        msg = f"from_dlpack: what is on DLPack device {tuple(map(int, where))} reaches the CPU by "
        msg += "a copy alone: leave out copy=False"
        raise ValueError(msg)
    capsule = _asked_for(source, where, copy)
    struct = _managed(capsule).dl_tensor
    carrier = struct.code, struct.bits
    dtype = _DTYPES.get(carrier) if struct.lanes == 1 else None
    if dtype is None:
        kind = _KINDS[struct.code] if struct.code < len(_KINDS) else f"of type code {struct.code}"
        lanes = f" in {struct.lanes} lanes" if struct.lanes != 1 else ""
        msg = f"from_dlpack: elements are {kind}, {struct.bits} bits{lanes}; supported: "
        msg += f"{', '.join(map(str, _CODES))}: cast them first"
        raise DTypeError(msg)
    struct.code = _KINDS.index("uint")
    taken = np.from_dlpack(_Capsule(capsule))
    struct.code = carrier[0]  # as its owner's deleter knows it
    array = taken.view(dtype.numpy)
    return array.copy() if copy and not away else array


def _asked_for(source: Any, where: tuple[int, int], copy: bool | None) -> Any:
    """The capsule of ``source``, on the CPU."""
    wanted: dict[str, Any] = {"max_version": (1, 0)}
    if copy is False:
        wanted["copy"] = False
    if where[0] in _HOST:
        try:
            return source.__dlpack__(**wanted)
        except TypeError:
            return source.__dlpack__()  # from before version 1
    try:
        return source.__dlpack__(**wanted, dl_device=_CPU)
    except (TypeError, ValueError, RuntimeError, BufferError) as exc:
        msg = f"from_dlpack: a {type(source).__name__} on DLPack device {tuple(map(int, where))} "
        msg += f"gives no copy on the CPU ({exc}): copy it there first, with .cpu() or its like"
        raise BufferError(msg) from exc


def _managed(capsule: Any) -> _Versioned | _Unversioned:
    """
    What a capsule holds, as long as it does.

    Raises:
        BufferError: it is no capsule that can be taken.
    """
    for name, layout in _LAYOUTS.items():
        if _is_valid(capsule, name):
            managed = layout.from_address(_pointer(capsule, name))
            if isinstance(managed, _Versioned) and managed.major != 1:
                msg = f"DLPack version {managed.major}.{managed.minor} is not supported; supported:"
                msg += " 0 and 1: ask with max_version=(1, 0)"
                raise BufferError(msg)
            return managed
    msg = f"__dlpack__ gave {capsule!r:.80}, not a capsule named dltensor or dltensor_versioned"
    raise BufferError(msg)


def _check_stream(stream: int | None, target: tuple[int, int]) -> None:
    """
    Check that the target has such a stream.

    Raises:
        UsageError: it has not.
    """
    if stream is None:
        return
    if target == _CPU:
        msg = f"stream is {stream!r}; the CPU has no streams: supported is None"
        raise UsageError(msg)
    # The specification's numbers for ROCm: 1 and 2 are CUDA's.
    if type(stream) is not int or stream < -1 or stream in (1, 2):
        msg = f"stream is {stream!r}; supported: None, -1 (do not wait), 0, or a handle as an int"
        raise UsageError(msg)


class _Capsule:
    """A capsule as numpy asks for it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


class _Elsewhere:
    """Memory of a device as numpy sees memory, which it never reads: it keeps it alive."""

    def __init__(self, tensor: Exchanged) -> None:
        self._storage = tensor.storage
        carrier, size = f"<u{tensor.dtype.block_bytes}", tensor.dtype.block_bytes
        self.__array_interface__ = {
            "version": 3,
            "typestr": carrier,
            "shape": tensor.shape,
            "strides": tuple(stride * size for stride in tensor.strides),
            "data": (tensor.ptr, False),
        }


__all__ = ["Exchanged", "device_of", "exported", "imported"]
