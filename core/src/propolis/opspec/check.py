"""
What is checked of the tensors of a call, whatever the op.

Captured calls are checked once, when they are captured.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Protocol

import numpy as np

from propolis.errors import OpError
from propolis.released import storage_of
from propolis.storage import SharedStorage
from propolis.tensor import Tensor


if TYPE_CHECKING:
    import inspect

    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.tensor import Device


# What plain attributes may be, by their annotation, and how that is said; a bool counts as no int.
_PLAIN: Final = {
    "int": ((int, np.integer), "an integer"),
    "float": ((float, int, np.floating, np.integer), "a number"),
    "bool": ((bool, np.bool_), "True or False"),
}


class Checked(Protocol):
    """What is known here of an op: see :class:`propolis.opspec.spec.OpSpec`."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def signature(self) -> inspect.Signature:
        """The op's parameters."""

    @property
    def mutates(self) -> bool:
        """Whether the first argument is the destination."""

    @property
    def elementwise(self) -> bool:
        """Whether it may write over one of its inputs."""

    def key_of(self, args: tuple[Any, ...]) -> Any:
        """The dispatch key of a call."""


def check_tensors(spec: Checked, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """
    Refuse what is no tensor where the op takes one.

    Raises:
        OpError: names the parameter.
    """
    parameters = spec.signature.parameters
    for name, value in {**dict(zip(parameters, args, strict=False)), **kwargs}.items():
        annotation = parameters[name].annotation if name in parameters else None
        wanted = annotation == "Tensor" or (annotation == "Tensor | None" and value is not None)
        if wanted and not isinstance(value, Tensor):
            shares = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
            how = "Tensor.from_dlpack" if shares else "Tensor.from_numpy"
            msg = f"{spec.name}: {name} is a {type(value).__name__}, not a Tensor: {how} makes one"
            raise OpError(msg)


def plain_attributes(signature: inspect.Signature) -> dict[str, tuple[type, ...]]:
    """The usual types of attributes whose annotation says all; others are looked at closer."""
    found: dict[str, tuple[type, ...]] = {}
    for name, parameter in signature.parameters.items():
        kind, _, none = str(parameter.annotation).partition(" | ")
        if kind in _PLAIN and none in ("", "None"):
            usual = _PLAIN[kind][0][:1]  # an int for a float may be too large
            found[name] = (*usual, type(None)) if none else usual
    return found


def check_rest(spec: Any, args: tuple[Any, ...], required: int, kwargs: dict[str, Any]) -> None:
    """
    Refuse tensors behind the required ones that are elsewhere, and attributes of a wrong type.

    Raises:
        OpError: names the parameter.
    """
    plain = spec.plain
    given: Any = kwargs.items()
    if len(args) > required:
        given = (*zip(spec.rest, args[required:], strict=False), *given)
    for name, value in given:
        if name in plain:
            if value.__class__ not in plain[name]:
                _check_plain(spec, name, value)
        elif isinstance(value, Tensor) and value.device is not args[0].device:
            raise mixed_devices(spec, args, kwargs)


def _check_plain(spec: Checked, name: str, value: Any) -> None:
    """
    Refuse an attribute that is of none of the types that its annotation means.

    Raises:
        OpError: names the attribute, what it is and what it may be.
    """
    kind, _, none = str(spec.signature.parameters[name].annotation).partition(" | ")
    types, words = _PLAIN[kind]
    far = kind == "float" and isinstance(value, int) and value.bit_length() > 1023
    if far or not isinstance(value, types) or (kind == "int" and isinstance(value, bool)):
        words += " below 2**1023" * far
        msg = f"{spec.name}: {name} is {value!r:.60}; allowed: {words}{none and ', or None'}"
        raise OpError(msg)


def mixed_devices(spec: Checked, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpError:
    """The error for tensors on several devices."""
    on = {name: value.device.id for name, value in _named(spec, args, kwargs)}
    places = ", ".join(f"{name} on {device}" for name, device in on.items())
    # Of one id they are of several runtimes, and an id means the default one's.
    what, how = ("devices", ".to()") if len({*on.values()}) > 1 else ("runtimes", ".to(x.device)")
    return OpError(f"{spec.name}: tensors on several {what} ({places}): move them with {how}")


def is_clear(
    spec: Checked,
    out: Tensor,
    meta: tuple[Shape, DType],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    """
    Whether an output fits the result and certainly shares no memory with an argument.

    False only leaves the second open: :func:`overlapping` looks closer.

    Raises:
        OpError: it does not fit.
    """
    try:
        layout, storage = out.layout, out.storage
        fits = (
            layout.shape == meta[0]
            and out.dtype is meta[1]
            and layout.is_contiguous
            and out.device is args[0].device
        )
    except AttributeError:
        fits = False
    if not fits:
        raise _unfit(spec, out, meta, args[0].device)
    # A storage that one tensor alone refers to is nobody else's.
    if sys.getrefcount(storage) > _ALONE or storage.__class__ is SharedStorage:
        return False
    return out not in args and not (kwargs and out in kwargs.values())


def _unfit(spec: Checked, out: Any, meta: tuple[Shape, DType], device: Device) -> OpError:
    """How an output differs from what the result needs."""
    if not isinstance(out, Tensor):
        return OpError(f"{spec.name}: out is a {type(out).__name__}, not a Tensor")
    if (out.shape, out.dtype) != meta:
        result = f"{meta[1]} of shape {meta[0]}"
        return OpError(f"{spec.name}: the result is {result}, out is {out!r}")
    if not out.is_contiguous:
        return OpError(f"{spec.name}: out has strides {out.strides}; it must be contiguous")
    return OpError(f"{spec.name}: out is on {out.device.id}, the arguments on {device.id}")


def _references(holder: Any) -> int:
    storage = holder.storage
    return sys.getrefcount(storage)


# What Python counts here of a storage that one tensor refers to; it differs by version.
_ALONE: Final = _references(SimpleNamespace(storage=object()))


def in_place(
    spec: Checked, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    The arguments of a call that writes over an input of it.

    Those read are copies of those that are written over, where an op with a destination of its
    own reads them, or where somebody on the ladder cannot work in place.

    Raises:
        OpError: as :func:`overlapping`.
    """
    same = overlapping(spec, out, args, kwargs, own=spec.mutates)
    if not same:
        return args, kwargs
    copies = out.device.table.set_apart(spec, spec.key_of(args), same)
    read = (copies.get(id(value), value) for value in args[spec.mutates :])
    kwargs = {name: copies.get(id(value), value) for name, value in kwargs.items()}
    return (*args[: spec.mutates], *read), kwargs


def overlapping(
    spec: Checked, target: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], *, own: bool
) -> list[Tensor]:
    """
    The inputs that are ``target``'s memory: element for element, or in any way where it is the
    op's ``own`` destination, its first argument.

    Raises:
        OpError: another one shares memory with it, or the op does not work in place.
    """
    expect_writable(spec, target)
    same = []
    for name, value in _named(spec, args, kwargs)[own:]:
        if not (_may_share(value, target) and _touches(value, target)):
            continue
        if own or (spec.elementwise and _coincides(value, target)):
            same.append(value)
            continue
        rule = (
            "it may be exactly an input, or apart from it"
            if spec.elementwise
            else "this op reads inputs while it writes"
        )
        msg = (
            f"{spec.name}: {target!r} is written and shares memory with {name}, {value!r}: {rule}; "
            f"give memory of its own, or ops.copy({name}) first"
        )
        raise OpError(msg)
    return same


def expect_writable(spec: Checked, target: Tensor) -> bool:
    """
    True; a destination in memory that is only read, which only memory from numpy is, is refused.

    Raises:
        OpError: it is.
    """
    if target.storage.__class__ is SharedStorage and not target.array.flags.writeable:
        msg = (
            f"{spec.name}: {target!r} is written and read-only (a mapped file, or a read-only "
            f"array): ops.copy makes a tensor that can be written"
        )
        raise OpError(msg)
    return True


def may_share(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether another argument lies in the storage of the first, a destination."""
    target = args[0]
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, Tensor) and _may_share(value, target):
            return True
    return False


def _may_share(tensor: Tensor, target: Tensor) -> bool:
    mine, theirs = storage_of(tensor), target.storage
    return mine is theirs or mine.__class__ is theirs.__class__ is SharedStorage


def expect_apart(spec: Checked, a: Tensor, b: Tensor) -> None:
    """
    Refuse two destinations that share memory.

    Raises:
        OpError: they do.
    """
    if a.storage is b.storage and _touches(a, b):
        msg = f"{spec.name}: its outputs {a!r} and {b!r} share memory"
        raise OpError(msg)


def _named(
    spec: Checked, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Tensor]]:
    given = spec.signature.bind(*args, **kwargs).arguments.items()
    return [(name, value) for name, value in given if isinstance(value, Tensor)]


def _coincides(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors are the same elements; of equal size, if not dtype."""
    return (
        (a.ptr, a.shape) == (b.ptr, b.shape)
        and a.is_contiguous
        and (a.dtype.block_bytes, a.dtype.block_size) == (b.dtype.block_bytes, b.dtype.block_size)
    )


def _span(tensor: Tensor) -> int:
    """Bytes from the first element's start to the last one's end."""
    if tensor.is_contiguous:
        return tensor.nbytes
    steps = zip(tensor.strides, tensor.shape, strict=True)
    elements = 1 + sum(stride * (count - 1) for stride, count in steps)
    return tensor.dtype.nbytes(elements)


def _touches(tensor: Tensor, solid: Tensor) -> bool:
    """
    Whether an element of ``tensor`` lies among those of ``solid``.

    Exact for views that core makes, where ``solid`` has no gaps; in doubt, as between the elements
    of one that has, and of stranger strides (windows that overlap, from numpy), it says yes.
    """
    if not tensor.numel or not solid.numel:
        return False
    block, size = tensor.dtype.block_size, tensor.dtype.block_bytes
    counts, strides = list(tensor.shape), list(tensor.strides)
    if block > 1:
        counts[-1] //= block
        strides = [*(s // block for s in strides[:-1]), 1]
    steps = sorted(((s * size, n) for s, n in zip(strides, counts, strict=True) if s and n > 1))
    reach = size  # bytes from the first element's start to the last one's end
    nested = True
    for step, count in steps:
        nested = nested and step >= reach
        reach += step * (count - 1)
    # The last byte of ``solid``, and its first, counted from the tensor's first element.
    first = solid.ptr - tensor.ptr
    last = first + _span(solid) - 1
    if last < 0 or first >= reach:
        return False
    if not nested:
        return True
    # The last element that starts at ``last`` or before: as digits of a number are found.
    start = 0
    for step, count in reversed(steps):
        start += step * min(count - 1, (last - start) // step)
    return start + size > first
