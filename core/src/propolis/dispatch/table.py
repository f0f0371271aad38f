"""
The dispatch table of one device: op and key in, bound callable out.

Binding happens once per (op, key) and generation.  Where the winner takes every call
and nobody could take over from it, what is bound is the plugin's own function: a
bound call costs nothing over a direct one.  Elsewhere it costs a ``try`` and a look at the
shapes (see :mod:`propolis.inflight`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from weakref import WeakSet

from propolis.dispatch.fallback import FallbackLog
from propolis.dispatch.ladder import Ladder
from propolis.dispatch.placement import Placement
from propolis.dispatch.quarantine import Quarantine
from propolis.dispatch.resolve import Split
from propolis.dispatch.resolve import Trace
from propolis.dispatch.resolve import resolve
from propolis.dispatch.rules import Rules
from propolis.dispatch.weights import Weights
from propolis.errors import DTypeError
from propolis.errors import NoImplementationError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable

    from propolis.device import Device
    from propolis.dispatch.metrics import Metrics
    from propolis.dispatch.site import Site
    from propolis.dtypes import DType
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec
    from propolis.records import OpImpl
    from propolis.tensor import Tensor


class DispatchTable:
    """
    Who serves each op on one device.

    Attributes:
        device: the device.
        cpu: the CPU, the last rung; the device itself on the CPU.
        plain: op name -> key -> callable, filled as keys are first seen.
        bound: what calls look up: ``plain``, or entries that record while captured.
        fallbacks: what ran on the CPU instead.
        rules: the user's decisions.
        quarantine: implementations that raised.
        save: keeps the call at which an implementation raised (see
            :class:`propolis_conformance.drift.failing.Saver`); None where the settings do not ask.
        generation: how often the bound entries were thrown away.
        placement: what was bound to whom, for the placement summary.
        weights: those that implementations prepared.
    """

    def __init__(
        self,
        device: Device,
        impls: Iterable[OpImpl],
        cpu: Device,
        fallbacks: FallbackLog | None = None,
        rules: Rules | None = None,
        quarantine: Quarantine | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.device = device
        self.cpu = cpu
        self.plain: dict[str, dict[Key, Callable[..., None]]] = defaultdict(dict)
        self.bound: dict[str, dict[Key, Callable[..., None]]] = self.plain
        self.fallbacks = fallbacks or FallbackLog()
        self.rules = rules or Rules()
        self.quarantine = quarantine or Quarantine()
        self.save: Callable[..., None] | None = None
        self.generation = 0
        self._ladders: dict[tuple[str, Key], Ladder] = {}
        self._live: WeakSet[Ladder] = WeakSet()
        self.placement = Placement(device, self.fallbacks, metrics)
        self.weights = Weights(self)
        self._impls: dict[str, list[OpImpl]] = defaultdict(list)
        for impl in impls:
            entry = metrics.measured(impl, device) if metrics is not None else impl
            self._impls[impl.op].append(entry)

    def trace(self, spec: OpSpec, key: Key, *, within: tuple[str, ...] = ()) -> Trace:
        """
        Every candidate for the op and what became of it.

        Args:
            spec: the op.
            key: its dispatch key.
            within: the ops whose decompositions led here.
        """
        kinds = key if isinstance(key, tuple) else (key,)
        key = spec.key(*kinds)
        on_cpu = None if self.device is self.cpu else self.cpu.table.trace(spec, key)
        candidates = self._impls.get(spec.name, ())
        split = self._split(spec, kinds, within)
        return resolve(
            spec,
            key,
            self.device,
            candidates,
            on_cpu,
            self.rules,
            split,
            self.quarantine,
        )

    def _split(
        self, spec: OpSpec, kinds: tuple[DType, ...], within: tuple[str, ...]
    ) -> Split | None:
        """Whether every part of the op's decomposition is served on this device."""
        if spec.decomposed is None or spec.name in within:
            return None
        parts = spec.decomposed.parts(*kinds)
        names = tuple(part.name for part in parts)
        for part, wanted in parts.items():
            try:
                trace = self.trace(part, part.key(*wanted), within=(*within, spec.name))
            except DTypeError as exc:
                return Split(names, str(exc))
            if not trace.on_device:
                listed = ", ".join(d.name for d in trace.key)
                return Split(names, f"{part.name} ({listed}): {trace.rejections}")
        return Split(names)

    def bind(self, spec: OpSpec, key: Key) -> Callable[..., None]:
        """
        The callable that runs the op for this key: ``run(out, *args, **kwargs)``.

        Raises:
            DTypeError: the op does not allow the key's dtypes.
            NoImplementationError: nobody serves it here, nor on the CPU; the message
                gives every candidate's reason.
            DeviceLostError: the device failed for good earlier.
        """
        self.device.expect_alive()
        known = self.plain[spec.name].get(key)
        if known is not None:
            return known
        run = self.plain[spec.name][key] = self._ladder(spec, key).entry()
        return run

    def _ladder(self, spec: OpSpec, key: Key) -> Ladder:
        """The op's rungs for this key, resolved once a generation."""
        known = self._ladders.get((spec.name, key))
        if known is not None:
            return known
        trace = self.trace(spec, key)
        if not trace.on_device and (trace.cpu is None or not trace.cpu.on_device):
            kinds = ", ".join(d.name for d in trace.key)
            cpu = f"; on the cpu: {trace.cpu.rejections}" if trace.cpu else ""
            msg = (
                f"{spec.name} ({kinds}) has no implementation on {self.device.id}: "
                f"{trace.rejections}{cpu}; `propolis explain {spec.name}` shows all candidates"
            )
            raise NoImplementationError(msg)
        self.placement.record(trace)
        ladder = self._ladders[spec.name, key] = Ladder(self, spec, key, trace)
        self._live.add(ladder)
        return ladder

    def bind_at(self, site: Site, spec: OpSpec, key: Key) -> Callable[..., None]:
        """As :meth:`bind`, for one captured call: what it needs is kept at ``site``."""
        self.device.expect_alive()
        ladder = site.ladder = self._ladder(spec, key).at(site)
        self._live.add(ladder)
        return ladder.entry()

    def works_in_place(self, spec: OpSpec, key: Key) -> bool:
        """Whether all who may run the op here can write over an input."""
        return all(impl.in_place for impl in self._ladder(spec, key).chain)

    def prepare(self, spec: OpSpec, key: Key, weight: Tensor) -> Tensor:
        """
        Let the implementation that will serve the op prepare a weight, once at load.

        Returns:
            The same tensor, carrying the prepared form for that implementation, or
            ``weight`` itself when the implementation takes weights as they are.
        """
        return self.weights.prepare(spec, key, weight)

    def condemn(self, impl: OpImpl, key: Key, reason: str, *, lasting: bool = True) -> None:
        """Take an implementation out for these dtypes; ``lasting``: in later processes too."""
        self.quarantine.add(impl, key, self.device, reason, lasting=lasting)
        self.rebind()
        self.weights.replace(impl, key)

    def rebind(self) -> None:
        """Begin a new generation: every key is resolved again when it is next called."""
        self.generation += 1
        self._ladders.clear()
        self.plain.clear()
        # Those that captured graphs hold are among them.
        live, self._live = self._live, WeakSet()
        for ladder in list(live):
            ladder.retire()
