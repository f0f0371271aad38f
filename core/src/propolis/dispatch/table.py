"""
The dispatch table of one device: op and key in, bound callable out.

Binding happens once per (op, key).  Where the winner takes every call, what is
bound is the plugin's own function: a bound call costs nothing over a direct one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from typing import Any

from propolis.dispatch.fallback import FallbackLog
from propolis.dispatch.fallback import run_on_cpu
from propolis.dispatch.fallback import traffic
from propolis.dispatch.placement import Placement
from propolis.dispatch.resolve import Split
from propolis.dispatch.resolve import Trace
from propolis.dispatch.resolve import resolve
from propolis.dispatch.rules import Rules
from propolis.errors import DTypeError
from propolis.errors import NoImplementationError
from propolis.errors import PluginError
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable

    from propolis.device import Device
    from propolis.dtypes import DType
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec
    from propolis.records import OpImpl


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
        placement: what was bound to whom, for the placement summary.
    """

    def __init__(
        self,
        device: Device,
        impls: Iterable[OpImpl],
        cpu: Device,
        fallbacks: FallbackLog | None = None,
        rules: Rules | None = None,
    ) -> None:
        self.device = device
        self.cpu = cpu
        self.plain: dict[str, dict[Key, Callable[..., None]]] = defaultdict(dict)
        self.bound = self.plain
        self.fallbacks = fallbacks or FallbackLog()
        self.rules = rules or Rules()
        self.placement = Placement(device, self.fallbacks)
        self._impls: dict[str, list[OpImpl]] = defaultdict(list)
        for impl in impls:
            self._impls[impl.op].append(impl)

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
        return resolve(spec, key, self.device, candidates, on_cpu, self.rules, split)

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
        """
        known = self.plain[spec.name].get(key)
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
        run = self._ladder(spec, key, trace)
        self.plain[spec.name][key] = run
        return run

    def prepare(self, spec: OpSpec, key: Key, weight: Tensor) -> Tensor:
        """
        Let the implementation that will serve the op prepare a weight, once at load.

        Returns:
            The same tensor, carrying the prepared form for that implementation, or
            ``weight`` itself when the implementation takes weights as they are.
        """
        winner = self.trace(spec, key).winner
        if winner is None or winner.prepare is None or winner.provenance is None:
            return weight
        prepared = winner.prepare(weight)
        self.placement.record_weight(spec.name, winner.provenance, weight, prepared)
        return weight.with_packed({winner.provenance.plugin: prepared.payload})

    def _ladder(self, spec: OpSpec, key: Key, trace: Trace) -> Callable[..., None]:
        chain = trace.chain
        if chain and chain[0].supports is None and chain[0].strided:
            return chain[0].fn
        split = spec.decomposed.fn if spec.decomposed and trace.is_split else None
        if split is not None and not chain:
            return split
        outputs, destinations = spec.outputs, max(spec.outputs, 1)

        def run(*args: Any, **kwargs: Any) -> None:
            reasons = []
            for impl in chain:
                reason = self._refusal(impl, args[:destinations], args[outputs:], kwargs)
                if reason is None:
                    if not impl.strided:
                        inputs = map(self._packed_rows, args[destinations:])
                        args = (*args[:destinations], *inputs)
                        kwargs = {name: self._packed_rows(v) for name, v in kwargs.items()}
                    impl.fn(*args, **kwargs)
                    return
                reasons.append(f"{impl.provenance}: {reason}")
            if split is not None:
                split(*args, **kwargs)
                return
            why = "; ".join(reasons) or trace.rejections
            if trace.cpu is None or not trace.cpu.on_device:
                msg = f"{spec.name}: every candidate on {self.device.id} declined: {why}"
                raise NoImplementationError(msg)
            nbytes = traffic(spec, self.cpu, args, kwargs)
            self.fallbacks.admit(spec.name, self.device.id, why, nbytes)
            run_on_cpu(spec, key, self.cpu, args, kwargs)

        return run

    @staticmethod
    def _refusal(
        impl: OpImpl,
        destinations: tuple[Tensor, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str | None:
        """Why the implementation declines this call; None when it takes it."""
        for target in () if impl.strided else destinations:
            if not target.is_contiguous:
                return f"it takes no strided destination, this one has strides {target.strides}"
        reason = impl.supports(*args, **kwargs) if impl.supports else None
        if reason is not None and not isinstance(reason, str):
            msg = (
                f"{impl.op}: supports() of {impl.provenance} returned {reason!r}; it must return "
                f"None to take a call, or the reason why not as a string"
            )
            raise PluginError(msg)
        return reason

    def _packed_rows(self, value: Any) -> Any:
        """A contiguous copy of a strided tensor, counted; other values as they are."""
        if not isinstance(value, Tensor) or value.is_contiguous:
            return value
        self.placement.strided_copies += 1
        return value.contiguous()
