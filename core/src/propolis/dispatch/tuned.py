"""
Which candidate was measured to be the fastest, for calls of some shapes on one machine.

What ``propolis tune`` found, and :mod:`propolis.plugins.tuned_file` keeps.  Where
nothing is known the ladder's order stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis.dispatch.base import Table
    from propolis.dispatch.call import Call
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.records import OpImpl
    from propolis.tensor import Device

_STEPS: Final = 4
"""Classes of sizes from a power of two to the next."""


@dataclass(frozen=True, slots=True)
class Choice:
    """
    Who serves calls of one class.

    Attributes:
        plugin: whose implementation it is.
        variant: which of its.
        seconds: of a call, by who may take it: ``plugin variant``; who led the ladder first.
    """

    plugin: str
    variant: str
    seconds: dict[str, float]

    @property
    def taken(self) -> str:
        """Who serves them, as :func:`label` says."""
        return f"{self.plugin} {self.variant}".rstrip()

    @property
    def leader(self) -> str:
        """Who led the ladder when it was made: it holds as long as that one does."""
        return next(iter(self.seconds), "")

    def __str__(self) -> str:
        label = self.taken
        others = ", ".join(
            f"{name} {seconds * 1e6:.1f}" for name, seconds in self.seconds.items() if name != label
        )
        return f"{label}, {self.seconds[label] * 1e6:.1f} us; {others}"


class Tuned:
    """Choices by device, op, dtypes and class of calls."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, tuple[str, ...]], dict[str, Choice]] = {}

    def add(self, device: str, op: str, kinds: Sequence[str], calls: str, choice: Choice) -> None:
        """Let ``choice`` serve a class of calls."""
        self._known.setdefault((device, op, tuple(kinds)), {})[calls] = choice

    def discard(self, device: str, op: str, kinds: Sequence[str], calls: str) -> None:
        """Forget a choice, where there is one."""
        self._known.get((device, op, tuple(kinds)), {}).pop(calls, None)

    def of(
        self, table: Table, spec: OpSpec, key: Key, chain: Sequence[OpImpl]
    ) -> dict[str, Choice]:
        """
        The choices for an op and its dtypes, by class of calls; most have none.

        Those hold that were made while the same implementation led the ladder: it may be another
        under other numerics, by an override, or since one was quarantined, and weights are
        prepared for it.  An op that the user names plugins for has none.
        """
        if not self._known or not chain or spec.name in table.rules.overrides:
            return {}
        kinds = key if isinstance(key, tuple) else (key,)
        where = hardware(table.device), spec.name, tuple(d.name for d in kinds)
        leader = label(chain[0])
        return {
            c: found for c, found in self._known.get(where, {}).items() if found.leader == leader
        }

    def orders(
        self, table: Table, spec: OpSpec, key: Key, chain: Sequence[OpImpl]
    ) -> dict[str, list[OpImpl]]:
        """The candidates as a choice orders them, by class of calls."""
        return {
            calls: _led_by(choice.taken, chain)
            for calls, choice in self.of(table, spec, key, chain).items()
        }

    def rows(self) -> Iterator[tuple[str, str, tuple[str, ...], str, Choice]]:
        """Each choice, with its device, op, dtypes and class of calls."""
        for (device, op, kinds), choices in sorted(self._known.items()):
            for calls, choice in sorted(choices.items()):
                yield device, op, kinds, calls, choice


def _led_by(taken: str, chain: Sequence[OpImpl]) -> list[OpImpl]:
    return sorted(chain, key=lambda impl: label(impl) != taken)


def label(impl: OpImpl) -> str:
    """An implementation's plugin and variant."""
    plugin = impl.provenance.plugin if impl.provenance else "?"
    return f"{plugin} {impl.variant}".rstrip()


def hardware(device: Device) -> str:
    """What figures of a device hold for: all of its kind and model."""
    properties = device.properties
    return f"{properties.kind} {properties.arch} {properties.name}"


def class_of(call: Call) -> str:
    """
    What calls have in common that one choice is made for.

    The sizes of their tensors, of which there are four from a power of two to the next, and
    attributes that are no tensors.
    """
    shapes = tuple(v.shape if isinstance(v, Tensor) else repr(v) for v in call.inputs)
    named = tuple(
        (name, value.shape if isinstance(value, Tensor) else repr(value))
        for name, value in sorted(call.attributes.items())
    )
    return _named(shapes, named)


@lru_cache(maxsize=4096)
def _named(shapes: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> str:
    return " ".join(
        [*map(_size_class, shapes), *(f"{name}={_size_class(value)}" for name, value in named)]
    )


def _size_class(value: Any) -> str:
    return value if isinstance(value, str) else "x".join(str(rounded_up(n)) for n in value)


def rounded_up(n: int) -> int:
    """
    The least size of ``n``'s class or above.

    >>> [rounded_up(n) for n in (1, 7, 9, 17, 576, 1536, 4097)]
    [1, 7, 10, 20, 640, 1536, 5120]
    """
    unit = 1 << max(n.bit_length() - _STEPS.bit_length(), 0)
    return -(-n // unit) * unit


__all__ = ["Choice", "Tuned", "class_of", "hardware", "label", "rounded_up"]
