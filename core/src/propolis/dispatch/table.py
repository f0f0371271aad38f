"""
The dispatch table of one device: op and key in, bound callable out.

Binding happens once per (op, key) and generation.  Where the winner takes every call
and nobody could take over from it, what is bound is the plugin's own function: a
bound call costs nothing over a direct one.  Elsewhere it costs a ``try`` and a look at the
shapes (see :mod:`propolis.inflight`).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING
from typing import Any
from typing import cast
from weakref import WeakSet

from propolis.dispatch.base import Table
from propolis.dispatch.call import Call
from propolis.dispatch.call import Handler
from propolis.dispatch.fallback import FallbackLog
from propolis.dispatch.ladder import Ladder
from propolis.dispatch.placement import Placement
from propolis.dispatch.quarantine import Quarantine
from propolis.dispatch.resolve import Parts
from propolis.dispatch.resolve import Trace
from propolis.dispatch.resolve import resolve
from propolis.dispatch.rules import Rules
from propolis.dispatch.tuned import Tuned
from propolis.dispatch.weights import Weights
from propolis.errors import DTypeError
from propolis.errors import NoImplementationError
from propolis.opspec.spec import catalogue


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Sequence

    from propolis.dispatch.ladder import Keeper
    from propolis.dispatch.metrics import Metrics
    from propolis.dispatch.resolve import Server
    from propolis.dtypes import DType
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.records import OpImpl
    from propolis.tensor import Device
    from propolis.tensor import Tensor


class DispatchTable(Table):
    """
    Who serves each op on one device.

    Attributes:
        device: the device.
        cpu: the CPU, the last rung; the device itself on the CPU.
        plain: op name -> key -> callable, filled as keys are first seen.
        bound: what calls look up: ``plain``, or while somebody looks at calls, entries that
            hand them over.
        fallbacks: what ran on the CPU instead.
        rules: the user's decisions.
        quarantine: implementations that raised.
        tuned: who was measured to be the fastest.
        generation: how often the bound entries were thrown away.
        placement: who ran calls, for the placement summary.
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
        tuned: Tuned | None = None,
    ) -> None:
        self.device = device
        self.cpu = cpu
        self.plain: dict[str, dict[Key, Callable[..., None]]] = defaultdict(dict)
        self.bound: dict[str, dict[Key, Callable[..., None]]] = self.plain
        self.fallbacks = fallbacks or FallbackLog()
        self.rules = rules or Rules()
        self.quarantine = quarantine or Quarantine()
        self.tuned = tuned or Tuned()
        self._handlers: tuple[tuple[int | None, Handler], ...] = ()
        self._copy: Any = catalogue()["copy"]
        self.generation = 0
        self._ladders: dict[tuple[str, Key], Ladder] = {}
        self._live: WeakSet[Ladder] = WeakSet()
        self.placement = Placement(device, self.fallbacks, metrics)
        self.weights = Weights(self)
        self._impls: dict[str, list[OpImpl]] = defaultdict(list)
        for impl in impls:
            self._impls[impl.op].append(impl)
        if metrics is not None:
            self.intercept(metrics.of(device, self.server))

    @staticmethod
    def of(device: Device) -> DispatchTable:
        """The table of a device."""
        return cast("DispatchTable", device.table)

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
        on_cpu = None if self.device is self.cpu else Table.of(self.cpu).trace(spec, key)
        candidates = self._impls.get(spec.name, ())
        parts = self._parts(spec, kinds, within)
        return resolve(
            spec, key, self.device, candidates, on_cpu, self.rules, parts, self.quarantine
        )

    def _parts(
        self, spec: OpSpec, kinds: tuple[DType, ...], within: tuple[str, ...]
    ) -> Parts | None:
        """Whether every part of the op's decomposition is served on this device."""
        if spec.decomposition is None or spec.name in within:
            return None
        parts = spec.decomposition.parts(*kinds)
        names = tuple(part.name for part in parts)
        for part, wanted in parts.items():
            try:
                trace = self.trace(part, part.key(*wanted), within=(*within, spec.name))
            except DTypeError as exc:
                return Parts(names, str(exc))
            if not trace.on_device:
                listed = ", ".join(d.name for d in trace.key)
                return Parts(names, f"{part.name} ({listed}): {trace.rejections}")
        return Parts(names)

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
        bound = self.bound  # once: another thread may begin to look, or end
        known = bound[spec.name].get(key)
        if known is not None:
            return known
        run = self._plain(spec, key)  # says now that nobody serves it
        if bound is not self.plain:
            run = bound[spec.name][key] = partial(self._handed_over, spec, key)
        return run

    def _plain(self, spec: OpSpec, key: Key) -> Callable[..., None]:
        run = self.plain[spec.name].get(key)
        if run is None:
            run = self.plain[spec.name][key] = self._ladder(spec, key).entry()
        return run

    def _handed_over(self, spec: OpSpec, key: Key, /, *args: Any, **kwargs: Any) -> None:
        self.device.expect_alive()
        # Bound anew each time: a quarantine since then changes who runs.
        self._seen(self._plain(spec, key), get_ident(), spec, key, *args, **kwargs)

    def _seen(
        self,
        run: Callable[..., None],
        thread: int | None,
        spec: OpSpec,
        key: Key,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Run a call under the eyes of those who look at the thread's, the last one first."""
        call = Call.of(spec, key, args, kwargs)
        proceed: Callable[[], None] = partial(run, *args, **kwargs)
        for handler in self.handlers(thread):
            proceed = partial(handler.run, call, proceed)
        proceed()

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
        ladder = self._ladders[spec.name, key] = Ladder(self, spec, key, trace)
        self._live.add(ladder)
        return ladder

    def bind_captured(self, keeper: Keeper, spec: OpSpec, key: Key) -> Callable[..., None]:
        """As :meth:`bind`, for one captured call, whose ``keeper`` has what it needs."""
        self.device.expect_alive()
        ladder = self._ladder(spec, key).at(keeper)
        self._live.add(ladder)
        return self._for_every_thread(ladder.entry(), spec, key)

    def bind_part(self, spec: OpSpec, key: Key) -> Callable[..., None]:
        """As :meth:`bind`, for a part of another device's call: none of a thread's own steps."""
        self.device.expect_alive()
        return self._for_every_thread(self._plain(spec, key), spec, key)

    def _for_every_thread(
        self, run: Callable[..., None], spec: OpSpec, key: Key
    ) -> Callable[..., None]:
        """The same, under the eyes of those who look at the calls of every thread."""
        return partial(self._seen, run, None, spec, key) if self.handlers(None) else run

    def intercept(self, handler: Handler, *, thread: int | None = None) -> ExitStack:
        """
        Hand calls to a handler from now on, until the context that is returned ends.

        What a decomposed op calls is handed over too, within the call of the whole.  A step
        that was captured earlier runs unseen: replays look nothing up.  One that is captured
        later is seen at each replay by those who look at every thread.

        Args:
            handler: the handler.
            thread: whose calls it sees; None for those of every thread.
        """
        item = thread, handler
        with _changes:
            self._watch((*self._handlers, item))
        context = ExitStack()
        context.callback(self._forget, item)
        return context

    def _forget(self, item: tuple[int | None, Handler]) -> None:
        with _changes:
            self._watch(tuple(other for other in self._handlers if other is not item))

    def _watch(self, handlers: tuple[tuple[int | None, Handler], ...]) -> None:
        self._handlers = handlers
        # Entries are swapped, so that ops pay nothing when nobody looks.
        if any(_looks(handler) for _, handler in handlers):
            self.bound = defaultdict(dict) if self.bound is self.plain else self.bound
        else:
            self.bound = self.plain

    def handlers(self, thread: int | None) -> list[Handler]:
        """Who looks at the calls of a thread, or of every one (None), in the order they came."""
        return [h for its, h in self._handlers if its in (None, thread) and _looks(h)]

    def failed(self, call: Call, impl: OpImpl, error: BaseException, *, intact: bool) -> None:
        """Tell those who look that an implementation raised."""
        me = get_ident()
        for thread, handler in self._handlers:
            if thread in (None, me):
                handler.failed(call, impl, error, intact=intact)

    def server(self, call: Call) -> Server:
        """Who takes a call as things stand; asked after one that ended, who ran it."""
        return self._ladder(call.spec, call.key).server(call)

    def takers(self, call: Call) -> list[OpImpl]:
        """The candidates on the device that take a call, who would run it first."""
        return list(self._ladder(call.spec, call.key).takers(call))

    def run_by(self, impl: OpImpl, call: Call) -> None:
        """Let one of the candidates run a call; what it raises is the caller's."""
        self._ladder(call.spec, call.key).let(impl, call)

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy, by the op ``copy``."""
        copied: Tensor = self._copy(tensor)
        return copied

    def copy_into(self, target: Tensor, tensor: Tensor) -> None:
        """Copy a tensor, by the op ``copy``."""
        self._copy.into(target, tensor)

    def set_apart(self, spec: OpSpec, key: Key, inputs: Sequence[Tensor]) -> dict[int, Tensor]:
        """Copies, by ``id``, of inputs that a call writes over; none where all can work so."""
        if not spec.mutates and all(impl.in_place for impl in self._ladder(spec, key).chain):
            return {}
        self.placement.in_place_copies += len(inputs)
        return {id(tensor): self.copy(tensor) for tensor in inputs}

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
        self.placement.taken_out(key, impl, reason)
        self.rebind()
        self.weights.replace(impl, key)

    def lost(self) -> None:
        """Resolve every op anew, so that each call meets the error; have who it was found out."""
        self.quarantine.lost(self.device)
        self.rebind()

    def rebind(self) -> None:
        """Begin a new generation: every key is resolved again when it is next called."""
        self.generation += 1
        self._ladders.clear()
        self.plain.clear()
        # Those that captured graphs hold are among them.
        live, self._live = self._live, WeakSet()
        for ladder in list(live):
            ladder.retire()


def servers(device: Device) -> list[str]:
    """Who serves ops of a device, those included that serve what falls to the CPU."""
    table = Table.of(device)
    found = table.placement.servers
    if table.placement.fallbacks.tallies:
        found = sorted({*found, *Table.of(table.cpu).placement.servers})
    return found


def _looks(handler: Handler) -> bool:
    """Whether it wants to see calls, and not their failures alone."""
    return type(handler).run is not Handler.run


_changes = threading.Lock()


__all__ = ["DispatchTable", "servers"]
