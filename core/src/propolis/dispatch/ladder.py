"""
The rungs for one op and key, from the winner down to the CPU.

A call that its first rung takes pays for a ``try``, and for a name of its frame that says
what was in flight should the process crash.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from typing import Any

from propolis.dispatch.fallback import Mirrored
from propolis.dispatch.fallback import traffic
from propolis.dispatch.quarantine import can_repeat
from propolis.dispatch.quarantine import is_devices_own
from propolis.dispatch.quarantine import is_fault
from propolis.dispatch.quarantine import is_reference
from propolis.errors import DeviceLostError
from propolis.errors import NoImplementationError
from propolis.errors import PluginError
from propolis.errors import UsageError
from propolis.inflight import Calls
from propolis.plugins.loader import describe
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dispatch.resolve import Trace
    from propolis.dispatch.site import Site
    from propolis.dispatch.table import DispatchTable
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec
    from propolis.records import OpImpl


class Ladder:
    """
    Runs an op for one key on whatever rung takes the call.

    Attributes:
        chain: the candidates on the device.
        split: the op's decomposition, where its parts are served.
        has_cpu: whether the CPU is the last rung.
        site: the captured call it is for; None for all calls that are not.
        named: what runs the candidates, by ``id``, where :meth:`walk` does.
    """

    def __init__(self, table: DispatchTable, spec: OpSpec, key: Key, trace: Trace) -> None:
        self.table = table
        self.spec = spec
        self.key = key
        self.chain = trace.chain
        self.split = spec.decomposed.fn if spec.decomposed and trace.is_split else None
        self.has_cpu = trace.cpu is not None and trace.cpu.on_device
        self.site: Site | None = None
        self._rejections = trace.rejections
        self.named: dict[int, Calls] = {}
        self._refused: set[int] = set()
        self.retire: Callable[[], None] = _nothing
        """Makes what :meth:`entry` gave look at quarantine and device again: captured
        graphs hold it, while new calls get another from the table."""

    def at(self, site: Site) -> Ladder:
        """The same for one captured call, which keeps its memory at ``site``."""
        own = copy.copy(self)
        own.site, own.retire, own.named = site, _nothing, {}
        return own

    def entry(self) -> Callable[..., None]:
        """What the table binds: the cheapest callable that does all that is needed."""
        if not self.chain:
            return self.walk if self.split is None else self._decompose
        first = self.chain[0]
        if first.supports is not None or not first.strided:
            return self.walk
        lower = len(self.chain) > 1 or self.split is not None or self.has_cpu
        on_cpu = self.table.device is self.table.cpu
        if on_cpu and (not lower or is_reference(first)):
            return first.fn  # nobody to take over, and no hardware to lose
        return self._guarded(first)

    def server(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpImpl | None:
        """The candidate that takes a call as things stand; None when a lower rung does."""
        for impl in self.chain:
            barred = self.table.quarantine.reason(impl, self.key, self.table.device)
            if (barred or refusal(self.spec, impl, args, kwargs)) is None:
                return impl
        return None

    def _guarded(self, impl: OpImpl) -> Callable[..., None]:
        calls, device, walk = self._named(impl), self.table.device, self.walk
        second, third = calls.second, calls.third

        def instead(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            walk(*args, **kwargs)

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
                failed = self._repeated(impl, exc, args, kwargs)
                if failed is None:
                    return
                self._failed(impl, failed, args, kwargs)
            else:
                return
            # Outside of the handler, so that what a lower rung raises has its own context.
            self._finish(args, kwargs, [(impl, failed)])

        def retire() -> None:
            calls.retire(instead)

        self.retire = retire
        return run

    def _named(self, impl: OpImpl) -> Calls:
        """Runs the implementation, in frames that are named after the calls."""
        name = self.table.quarantine.name(impl, self.key, self.table.device)
        return Calls(impl.fn, name, *self.spec.taken)

    def walk(self, *args: Any, **kwargs: Any) -> None:
        """Run a call on the first rung that takes it."""
        self.table.device.expect_alive()
        self._finish(args, kwargs, [])

    def _finish(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        failed: list[tuple[OpImpl, BaseException]],
    ) -> None:
        """Run a call that some have failed at already, and believe their faults if it runs."""
        try:
            self._climb_down(args, kwargs, failed)
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
            self._save(impl, error, args, kwargs)
            self._condemn(impl, error)
            error.__traceback__ = None  # its frames, and so itself, hold the call's tensors

    def _climb_down(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        failed: list[tuple[OpImpl, BaseException]],
    ) -> None:
        spec, table = self.spec, self.table
        reasons = [f"{impl.provenance}: raised {describe(exc)}" for impl, exc in failed]
        tried = [impl for impl, _ in failed]
        for impl in self.chain:
            if impl in tried:
                continue
            started = False
            try:
                reason = table.quarantine.reason(impl, self.key, table.device)
                reason = reason or refusal(spec, impl, args, kwargs)
                if reason is None:
                    started = True
                    self._run(impl, args, kwargs)
                    return
            except (Exception, SystemExit) as exc:  # noqa: BLE001  (a stranger's code; sorted out there)
                error = self._repeated(impl, exc, args, kwargs) if started else exc
                if error is None:
                    return
                self._failed(impl, error, args, kwargs, started=started)
                failed.append((impl, error))
                reason = f"raised {describe(error)}"
            reasons.append(f"{impl.provenance}: {reason}")
        if self.split is not None:
            self._decompose(*args, **kwargs)
            return
        why = "; ".join(reasons) or self._rejections
        if not self.has_cpu:
            msg = f"{spec.name}: every candidate on {table.device.id} declined: {why}"
            raise NoImplementationError(msg)
        table.fallbacks.admit(
            spec.name, table.device.id, why, traffic(spec, table.cpu, args, kwargs)
        )
        self._run_on_cpu(args, kwargs)

    def _run(self, impl: OpImpl, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not impl.strided:
            first = max(self.spec.outputs, 1)
            read = (self._packed(i, value) for i, value in enumerate(args[first:]))
            args = (*args[:first], *read)
            kwargs = {name: self._packed(name, value) for name, value in kwargs.items()}
        calls = self.named.get(id(impl))
        if calls is None:
            calls = self.named[id(impl)] = self._named(impl)
        launch = calls.of(args, kwargs)
        self.table.device.launched = launch
        launch(args, kwargs)

    def _packed(self, place: int | str, value: Any) -> Any:
        """A contiguous copy of a strided tensor, counted; other values as they are."""
        if not isinstance(value, Tensor) or value.is_contiguous:
            return value
        self.table.placement.strided_copies += 1
        return value.contiguous() if self.site is None else self.site.packed(place, value)

    def _decompose(self, *args: Any, **kwargs: Any) -> None:
        assert self.split is not None  # noqa: S101  (who calls has looked)
        if self.site is None:
            self.split(*args, **kwargs)
        else:
            self.site.decompose(self.split, args, kwargs)

    def _run_on_cpu(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        spec, cpu, site = self.spec, self.table.cpu, self.site
        if site is None:
            Mirrored(spec, cpu, cpu.table.bind(spec, self.key), args, kwargs)()
            return
        if site.mirrored is None:
            run = cpu.table.bind_at(site.on(cpu), spec, self.key)
            site.mirrored = Mirrored(spec, cpu, run, args, kwargs, site.stock.host)
        site.mirrored()

    def _repeated(
        self, impl: OpImpl, exc: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BaseException | None:
        """What the call raises when a device that refused it is asked again; None: it ran."""
        if not is_devices_own(exc) or not can_repeat(self.spec, args, kwargs):
            return exc
        try:
            self._run(impl, args, kwargs)
        except (Exception, SystemExit) as again:  # noqa: BLE001  (a stranger's code)
            return again
        if id(impl) not in self._refused:
            self._refused.add(id(impl))
            reason = f"raised {describe(exc)}"
            self.table.quarantine.repeated(impl, self.key, self.table.device, reason)
        return None

    def _failed(
        self,
        impl: OpImpl,
        exc: BaseException,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        started: bool = True,
    ) -> None:
        """
        Return when another rung may repeat the call; else raise what the caller must see.

        Raises:
            PluginError: the implementation is at fault, and its inputs may be overwritten.
        """
        if isinstance(exc, DeviceLostError):
            self.table.device.lost(exc)
        if not is_fault(exc) or is_reference(impl):
            raise self._shown(impl, exc)
        if not started or can_repeat(self.spec, args, kwargs):
            return
        if len(self.chain) == 1 and self.split is None and not self.has_cpu:
            raise self._shown(impl, exc)
        self._save(impl, exc, args, kwargs, intact=False)
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
        if not isinstance(exc, SystemExit):
            return exc
        error = PluginError(f"{self.spec.name}: {impl.provenance} raised {describe(exc)}")
        error.__cause__ = exc
        return error

    def _save(
        self,
        impl: OpImpl,
        exc: BaseException,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        intact: bool = True,
    ) -> None:
        """Keep the call in a file, where the settings ask for it."""
        if self.table.save is not None:
            self.table.save(self.spec, impl, exc, args, kwargs, intact)


def refusal(
    spec: OpSpec, impl: OpImpl, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Why the implementation declines this call; None when it takes it."""
    for target in () if impl.strided else args[: max(spec.outputs, 1)]:
        if not target.is_contiguous:
            return f"it takes no strided destination, this one has strides {target.strides}"
    reason = impl.supports(*args[spec.outputs :], **kwargs) if impl.supports else None
    if reason is not None and not isinstance(reason, str):
        msg = (
            f"{impl.op}: supports() of {impl.provenance} returned {reason!r}; it must return "
            f"None to take a call, or the reason why not as a string"
        )
        raise PluginError(msg)
    return reason


def _nothing() -> None:
    """What there is to retire of an entry that looks at everything anew."""


__all__ = ["Ladder", "refusal"]
