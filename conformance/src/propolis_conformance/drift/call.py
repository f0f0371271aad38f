"""One call of an op with all that it was given, on the host."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.layout import Layout
from propolis.ops import catalogue
from propolis.storage import CpuStorage
from propolis.tensor import Tensor
from propolis_conformance.inputs import Value


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.ops import OpSpec
    from propolis.tensor import Device

# Elements: whole blocks of every format, and more than any kernel asks for as alignment.
_ALIGNMENT: Final = 256


@dataclass(frozen=True, slots=True)
class HostTensor:
    """
    The bytes that a tensor reaches, on the host, and how they lie.

    Attributes:
        raw: uint8 (n,): from the first element to the last.
        dtype: the element type.
        shape: in elements.
        strides: in elements.
        offset: the element of its storage that it begins with.
    """

    raw: np.ndarray[Any, Any]
    dtype: DType
    shape: Shape
    strides: Shape
    offset: int = 0

    @classmethod
    def of(cls, tensor: Tensor) -> HostTensor:
        """A copy of a tensor of any device."""
        layout, dtype = tensor.layout, tensor.dtype
        start = dtype.nbytes(layout.offset)
        raw = np.empty(dtype.nbytes(layout.extent) - start, np.uint8)
        tensor.device.memory.copy_out(raw, tensor.storage, start)
        return cls(raw, dtype, layout.shape, layout.strides, layout.offset)

    def to(self, device: Device) -> Tensor:
        """A tensor with the same elements, strides and alignment on a device."""
        start = self.offset % _ALIGNMENT
        layout = Layout(self.shape, self.strides, start)
        storage = device.memory.allocate(self.dtype.nbytes(start) + self.raw.nbytes)
        device.memory.copy_in(storage, self.dtype.nbytes(start), self.raw)
        return Tensor(storage, layout, self.dtype, device)

    def copy_into(self, tensor: Tensor) -> None:
        """Give the elements to a tensor of the same layout, on any device."""
        tensor.device.memory.copy_in(tensor.storage, self.dtype.nbytes(self.offset), self.raw)

    def filled(self, elements: np.ndarray[Any, Any], cpu: Device) -> HostTensor:
        """The same layout with other elements, rounded to the dtype."""
        raw = self.raw.copy()
        view = self._view(raw, cpu)
        with np.errstate(over="ignore"):  # to infinity
            view[...] = elements.astype(view.dtype)
        return replace(self, raw=raw)

    def value(self, cpu: Device) -> Value:
        """The elements in row-major order."""
        return Value(np.ascontiguousarray(self._view(self.raw, cpu)), self.dtype, self.shape)

    def _view(self, raw: np.ndarray[Any, Any], cpu: Device) -> np.ndarray[Any, Any]:
        layout = Layout(self.shape, self.strides)
        return Tensor(CpuStorage(raw), layout, self.dtype, cpu).array


@dataclass(frozen=True, slots=True)
class SavedCall:
    """
    An op's name and arguments, and what came of them.

    Attributes:
        op: the op's name.
        tensors: the tensor arguments, by parameter name in signature order.
        attributes: the other arguments: numbers, flags, dtypes, tuples of integers, None.
        shared: arguments that are the very tensor of an earlier one: name -> that name.
        into: destinations that are the very tensor of an input: position -> its name.
        prepared: arguments that carried what the implementation prepared of them at load.
        results: the destinations afterwards; empty when the call was not seen to end.
        facts: where the call comes from: texts and numbers, for people.
    """

    op: str
    tensors: Mapping[str, HostTensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    into: Mapping[int, str] = field(default_factory=dict)
    prepared: tuple[str, ...] = ()
    results: tuple[HostTensor, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether who ran it computes with its inputs as they are; so where nobody said."""
        return bool(self.facts.get("exact", 1))

    @property
    def spreads(self) -> bool:
        """Whether who ran it may give NaN beside what is not finite; not where nobody said."""
        return bool(self.facts.get("spreads", 0))

    @classmethod
    def of(cls, spec: OpSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SavedCall:
        """
        A copy of a call's arguments, before it runs.

        Args:
            spec: the op.
            args: destinations and arguments, as implementations receive them.
            kwargs: the keyword arguments.
        """
        return cls.given(spec, args[spec.outputs :], kwargs, args[: spec.outputs])

    @classmethod
    def given(
        cls,
        spec: OpSpec,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        outputs: Sequence[Tensor] = (),
    ) -> SavedCall:
        """The same from arguments as callers give them, and the destinations if there are any."""
        given = spec.signature.bind(*args, **kwargs).arguments
        live = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        tensors: dict[str, HostTensor] = {}
        shared: dict[str, str] = {}
        for name, tensor in live.items():
            twin = next((n for n in tensors if _same(live[n], tensor)), None)
            tensors[name] = tensors[twin] if twin else HostTensor.of(tensor)
            if twin:
                shared[name] = twin
        into = {
            i: next(name for name, tensor in live.items() if _same(tensor, out))
            for i, out in enumerate(outputs)
            if any(_same(tensor, out) for tensor in live.values())
        }
        return cls(
            spec.name,
            tensors,
            {name: value for name, value in given.items() if name not in live},
            shared,
            into,
            tuple(name for name, tensor in live.items() if tensor.prepared),
        )

    @property
    def spec(self) -> OpSpec:
        """The op."""
        return catalogue()[self.op]

    @property
    def kinds(self) -> tuple[DType, ...]:
        """The dtypes that it dispatches on."""
        return tuple(self.tensors[name].dtype for name in self.spec.dtypes)

    @property
    def nbytes(self) -> int:
        """Bytes of its arguments' elements, each tensor once."""
        return sum(t.raw.nbytes for name, t in self.tensors.items() if name not in self.shared)

    def ended(self, outputs: tuple[Tensor, ...], **facts: Any) -> SavedCall:
        """The same call with its results, and more facts."""
        results = tuple(map(HostTensor.of, outputs))
        return replace(self, results=results, facts={**self.facts, **facts})

    def __str__(self) -> str:
        kinds = ", ".join(f"{p}={k}" for p, k in zip(self.spec.dtypes, self.kinds, strict=True))
        return f"{self.op} ({kinds})"


def destinations(spec: OpSpec, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """The tensors that a call writes: its outputs, and its first argument if it mutates that."""
    return args[: spec.outputs + spec.mutates]


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.storage is b.storage and a.layout == b.layout and a.dtype is b.dtype)


__all__ = ["HostTensor", "SavedCall", "destinations"]
