"""
The rungs for one op and key, from the winner down to the CPU.

A call that its first rung takes pays for a ``try``, and for a name of its frame that says
what was in flight should the process crash.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

from propolis.dispatch.base import Table
from propolis.dispatch.call import Call
from propolis.dispatch.fallback import Mirrored
from propolis.dispatch.fallback import traffic
from propolis.dispatch.quarantine import is_devices_own
from propolis.dispatch.quarantine import is_fault
from propolis.dispatch.quarantine import is_reference
from propolis.dispatch.resolve import Server
from propolis.dispatch.tuned import class_of
from propolis.errors import DeviceLostError
from propolis.errors import NoImplementationError
from propolis.errors import OutOfMemoryError
from propolis.errors import PluginError
from propolis.errors import UsageError
from propolis.inflight import Calls
from propolis.inflight import named
from propolis.tensor import Tensor
from propolis.wording import describe


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator

    from propolis.dispatch.resolve import Trace
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.records import OpImpl


class Keeper(Protocol):
    """Where a captured call keeps what it needs beside its arguments."""

    def contiguous(self, place: int | str, value: Tensor) -> Tensor:
        """A contiguous copy of a strided input, in memory that is kept."""

    def decompose(self, fn: Callable[..., None], call: Call) -> None:
        """Run the op's decomposition; its parts, once they were captured."""

    def run_on_cpu(self, call: Call) -> None:
        """Run the call on the CPU, over mirrors that are kept."""


class Ladder:
    """
    Runs an op for one key on whatever rung takes the call.

    Attributes:
        chain: the candidates on the device.
        decomposition: the op's, where its parts are served.
        has_cpu: whether the CPU is the last rung.
        keeper: of the captured call it is for; None for all calls that are not.
        named: what runs the candidates, by ``id``, where :meth:`run` does.
        asks: what asks them whether they take a call, likewise.
    """

    def __init__(self, table: Table, spec: OpSpec, key: Key, trace: Trace) -> None:
        self.table = table
        self.spec = spec
        self.key = key
        self.chain = trace.chain
        self._orders = table.tuned.orders(table, spec, key, self.chain)
        known = spec.decomposition
        self.decomposition = known.fn if known and trace.is_decomposed else None
        self._parts = trace.parts
        self._cpu = trace.cpu.server if trace.cpu is not None and trace.cpu.on_device else None
        self.has_cpu = self._cpu is not None
        self.keeper: Keeper | None = None
        self._rejections = trace.rejections
        self.named: dict[int, Calls] = {}
        self.asks: dict[int, Callable[[OpImpl, Call], str | None]] = {}
        self._refused: set[int] = set()
        self._split = False  # whether it is noted that the op was done with others
        self._last: OpImpl | None = None  # ran the call before, and is noted
        self.retire: Callable[[], None] = _nothing
        """Makes what :meth:`entry` gave look at quarantine and device again: captured
        graphs hold it, while new calls get another from the table."""

    def at(self, keeper: Keeper) -> Ladder:
        """The same for one captured call."""
        own = copy.copy(self)
        own.keeper, own.retire, own.named = keeper, _nothing, {}
        return own

    def entry(self) -> Callable[..., None]:
        """What the table binds: the cheapest callable that does all that is needed."""
        placement = self.table.placement
        if not self.chain:
            if self.decomposition is not None:
                return self._decompose
            placement.lacking(self.spec.name, self._rejections)
            return self.run
        first = self.chain[0]
        if self._orders or first.supports is not None or not first.strided:
            return self.run
        placement.served(self.spec.name, self.key, first)
        lower = len(self.chain) > 1 or self.decomposition is not None or self.has_cpu
        if self.table.device is self.table.cpu and (not lower or is_reference(first)):
            return first.fn  # nobody to take over, and no hardware to lose
        return self._guarded(first)

    def server(self, call: Call) -> Server:
        """
        Who takes a call as things stand.

        Asked after a call that ended, it is who ran it: what raised is out by then.
        """
        for impl in self.takers(call):
            return Server(impl=impl)
        if self.decomposition is not None:
            return Server(parts=self._parts)
        return Server(cpu=self._cpu)

    def takers(self, call: Call) -> Iterator[OpImpl]:
        """The candidates that take a call, who runs it first."""
        return (impl for impl in self._ordered(call) if self._refusal(impl, call) is None)

    def _ordered(self, call: Call) -> list[OpImpl]:
        """The candidates, first who was measured to be the fastest at such calls."""
        return self._orders.get(class_of(call), self.chain) if self._orders else self.chain

    def _refusal(self, impl: OpImpl, call: Call) -> str | None:
        """Why the implementation does not run this call; None when it does."""
        quarantine, device = self.table.quarantine, self.table.device
        barred = quarantine.reason(impl, self.key, device)
        if id(impl) not in self.asks:  # a plugin may call a library that aborts, here too
            self.asks[id(impl)] = named(refusal, quarantine.name(impl, self.key, device))
        return barred or self.asks[id(impl)](impl, call)

    def _guarded(self, impl: OpImpl) -> Callable[..., None]:
        calls, device, slow = self._named(impl), self.table.device, self.run
        second, third = calls.second, calls.third

        def instead(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            slow(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> None:
            if (
                args[0].layout is calls.a
                and args[second].layout is calls.b
                and args[third].layout is calls.c
            ):
                launch = calls.launch
            else:
                launch = calls.of(args, kwargs)
            device.launched = launch
            try:
                launch(args, kwargs)
            except (Exception, SystemExit) as exc:
                if launch is instead:
                    raise
                call = Call.of(self.spec, self.key, args, kwargs)
                failed = self._repeated(impl, exc, call)
                if failed is None:
                    return
                self._failed(impl, failed, call)
            else:
                return
            # Outside of the handler, so that what a lower rung raises has its own context.
            self._finish(call, [(impl, failed)])

        def retire() -> None:
            calls.retire(instead)

        self.retire = retire
        return run

    def _named(self, impl: OpImpl) -> Calls:
        """Runs the implementation, in frames that are named after the calls."""
        name = self.table.quarantine.name(impl, self.key, self.table.device)
        fn = impl.fn
        if self.table.quarantine.serialises(self.table.device):
            fn = self._awaited(fn)
        return Calls(fn, name, *self.spec.taken)

    def _awaited(self, fn: Callable[..., None]) -> Callable[..., None]:
        """Run a function and what it launches, while the quarantine asks for that."""
        quarantine, device = self.table.quarantine, self.table.device

        def run(*args: Any, **kwargs: Any) -> None:
            if not quarantine.serialises(device):
                fn(*args, **kwargs)
                return
            with quarantine.alone:
                fn(*args, **kwargs)
                device.guarded(device.memory.synchronize)
                device.launched = None
                if device.kind in quarantine.waited:
                    quarantine.waited[device.kind] += 1

        return run

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Run a call on the first rung that takes it."""
        self.table.device.expect_alive()
        self._finish(Call.of(self.spec, self.key, args, kwargs), [])

    def _finish(self, call: Call, failed: list[tuple[OpImpl, BaseException]]) -> None:
        """Run a call that some have failed at already, and believe their faults if it runs."""
        try:
            self._climb_down(call, failed)
        except DeviceLostError as exc:
            self.table.device.lost(exc)
            raise
        except UsageError:
            raise
        except Exception as exc:
            if not failed:
                raise
            first = failed[0][1]
            # Everybody fails: it is the data, and the first error is the one to see.
            if is_fault(exc) or isinstance(exc, NoImplementationError):
                first = self._shown(failed[0][0], first)
                raise first from first.__cause__
            raise exc from first
        for impl, error in failed:
            self.table.failed(call, impl, error, intact=True)
            self._condemn(impl, error)
            error.__traceback__ = None  # its frames, and so itself, hold the call's tensors

    def _climb_down(self, call: Call, failed: list[tuple[OpImpl, BaseException]]) -> None:
        spec, table = self.spec, self.table
        reasons: list[str] = []
        for impl in self._ordered(call):
            raised = [exc for other, exc in failed if other is impl] if failed else None
            if raised:
                reasons.append(f"{impl.provenance}: raised {describe(raised[0])}")
                continue
            started = False
            try:
                reason = self._refusal(impl, call)
                if reason is None:
                    started = True
                    self.let(impl, call)
                    if self._last is not impl:
                        self._last = impl
                        table.placement.served(spec.name, self.key, impl)
                    return
            except (Exception, SystemExit) as exc:  # noqa: BLE001  (a stranger's code; sorted out there)
                error = self._repeated(impl, exc, call) if started else exc
                if error is None:
                    return
                self._failed(impl, error, call, started=started)
                failed.append((impl, error))
                reason = f"raised {describe(error)}"
            reasons.append(f"{impl.provenance}: {reason}")
        if self.decomposition is not None:
            self._decompose(*call.args, **call.attributes)
            return
        why = "; ".join(dict.fromkeys(reasons)) or self._rejections
        if not self.has_cpu:
            msg = f"{spec.name}: every candidate on {table.device.id} declined: {why}"
            raise NoImplementationError(msg)
        table.fallbacks.admit(spec.name, table.device.id, why, traffic(call, table.cpu))
        if self.keeper is not None:
            self.keeper.run_on_cpu(call)
        else:
            Mirrored(call, table.cpu, Table.of(table.cpu).bind_part(spec, self.key))()

    def let(self, impl: OpImpl, call: Call) -> None:
        """Let the implementation do the call."""
        args, kwargs = call.args, call.attributes
        if not (impl.strided or (are_contiguous(args) and are_contiguous(kwargs.values()))):
            read = (self._contiguous(i, v) for i, v in enumerate(args[len(call.written) :]))
            args = (*call.written, *read)
            kwargs = {name: self._contiguous(name, value) for name, value in kwargs.items()}
        calls = self.named.get(id(impl))
        if calls is None:
            calls = self.named[id(impl)] = self._named(impl)
        launch = calls.of(args, kwargs)
        self.table.device.launched = launch
        launch(args, kwargs)

    def _contiguous(self, place: int | str, value: Any) -> Any:
        """A contiguous copy of a strided tensor, counted; other values as they are."""
        if not isinstance(value, Tensor) or value.is_contiguous:
            return value
        self.table.placement.strided_copies += 1
        return value.contiguous() if self.keeper is None else self.keeper.contiguous(place, value)

    def _decompose(self, *args: Any, **kwargs: Any) -> None:
        assert self.decomposition is not None  # noqa: S101  (who calls has looked)
        if self.keeper is None:
            self.decomposition(*args, **kwargs)
        else:
            call = Call.of(self.spec, self.key, args, kwargs)
            self.keeper.decompose(self.decomposition, call)
        if not self._split:
            self._split = True
            self.table.placement.decomposed(self.spec.name, str(self._parts))

    def _repeated(self, impl: OpImpl, exc: BaseException, call: Call) -> BaseException | None:
        """What the call raises when a device that refused it is asked again; None: it ran."""
        if not is_devices_own(exc) or not call.can_repeat:
            return exc
        try:
            self.let(impl, call)
        except (Exception, SystemExit) as again:  # noqa: BLE001  (a stranger's code)
            return again
        if id(impl) not in self._refused:
            self._refused.add(id(impl))
            reason = f"raised {describe(exc)}"
            self.table.quarantine.repeated(impl, self.key, self.table.device, reason)
        return None

    def _failed(
        self, impl: OpImpl, exc: BaseException, call: Call, *, started: bool = True
    ) -> None:
        """
        Return when another rung may repeat the call; else raise what the caller must see.

        Raises:
            PluginError: the implementation is at fault, and its inputs may be overwritten.
        """
        if isinstance(exc, DeviceLostError):
            self.table.device.lost(exc)
            self.table.quarantine.blame(impl, self.key, self.table.device, exc)
        if not is_fault(exc) or is_reference(impl):
            raise self._shown(impl, exc)
        if not started or call.can_repeat:
            return
        if len(self.chain) == 1 and self.decomposition is None and not self.has_cpu:
            raise self._shown(impl, exc)
        self.table.failed(call, impl, exc, intact=False)
        if is_devices_own(exc) and id(impl) not in self._refused:
            self._refused.add(id(impl))  # once is no proof, and this call was the only one
            then = "it is asked again for the next one"
        else:
            self._condemn(impl, exc)
            then = "others serve the next one"
        msg = (
            f"{self.spec.name}: {impl.provenance} raised {describe(exc)} and may have "
            f"overwritten its inputs: the call cannot be repeated; {then}"
        )
        raise PluginError(msg) from exc

    def _condemn(self, impl: OpImpl, exc: BaseException) -> None:
        reason = f"raised {describe(exc)}"
        self.table.condemn(impl, self.key, reason, lasting=not is_devices_own(exc))

    def _shown(self, impl: OpImpl, exc: BaseException) -> BaseException:
        """What the caller sees of an exception: no plugin ends the process by one."""
        if not isinstance(exc, SystemExit | MemoryError):
            return exc
        kind = OutOfMemoryError if isinstance(exc, MemoryError) else PluginError
        error = kind(f"{self.spec.name}: {impl.provenance} raised {describe(exc)}")
        error.__cause__ = exc
        return error


def are_contiguous(values: Iterable[Any]) -> bool:
    """Whether the tensors among these values are."""
    for value in values:
        if isinstance(value, Tensor) and not value.layout.is_contiguous:
            return False
    return True


def refusal(impl: OpImpl, call: Call) -> str | None:
    """Why the implementation declines this call; None when it takes it."""
    for target in () if impl.strided else call.written:
        if not target.is_contiguous:
            return f"it takes no strided destination, this one has strides {target.strides}"
    reason = call.refused_by(impl)
    if reason is not None and not (isinstance(reason, str) and reason):
        msg = f"{impl.op}: supports() of {impl.provenance} returned {reason!r}; say why, or None"
        raise PluginError(msg)
    return reason


def _nothing() -> None:
    """What there is to retire of an entry that looks at everything anew."""


__all__ = ["Keeper", "Ladder", "refusal"]
