"""
The rungs for one op and key, from the winner down to the CPU.

A call that its first rung takes pays for a ``try`` and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis.dispatch.fallback import run_on_cpu
from propolis.dispatch.fallback import traffic
from propolis.dispatch.quarantine import can_repeat
from propolis.dispatch.quarantine import is_fault
from propolis.errors import DeviceLostError
from propolis.errors import NoImplementationError
from propolis.errors import PluginError
from propolis.errors import UsageError
from propolis.plugins.discovery import ESSENTIAL
from propolis.plugins.loader import describe


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dispatch.resolve import Trace
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
    """

    def __init__(self, table: DispatchTable, spec: OpSpec, key: Key, trace: Trace) -> None:
        self.table = table
        self.spec = spec
        self.key = key
        self.chain = trace.chain
        self.split = spec.decomposed.fn if spec.decomposed and trace.is_split else None
        self.has_cpu = trace.cpu is not None and trace.cpu.on_device
        self._rejections = trace.rejections
        self.retire: Callable[[], None] = lambda: None
        """Makes what :meth:`entry` gave look at quarantine and device again: captured
        graphs hold it, while new calls get another from the table."""

    def entry(self) -> Callable[..., None]:
        """What the table binds: the cheapest callable that does all that is needed."""
        if not self.chain:
            return self.split or self.walk
        first = self.chain[0]
        if first.supports is not None or not first.strided:
            return self.walk
        lower = len(self.chain) > 1 or self.split is not None or self.has_cpu
        on_cpu = self.table.device is self.table.cpu
        if on_cpu and (not lower or _is_reference(first)):
            return first.fn  # nobody to take over, and no hardware to lose
        return self._guarded(first)

    def _guarded(self, impl: OpImpl) -> Callable[..., None]:
        fn, walk = impl.fn, self.walk

        def run(*args: Any, **kwargs: Any) -> None:
            called = fn
            try:
                called(*args, **kwargs)
            except Exception as exc:
                if called is walk:
                    raise
                self._failed(impl, exc, args, kwargs)
                failed = exc
            else:
                return
            # Outside of the handler, so that what a lower rung raises has its own context.
            self._finish(args, kwargs, [(impl, failed)])

        def retire() -> None:
            nonlocal fn
            fn = walk

        self.retire = retire
        return run

    def walk(self, *args: Any, **kwargs: Any) -> None:
        """Run a call on the first rung that takes it."""
        self.table.expect_alive()
        self._finish(args, kwargs, [])

    def _finish(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        failed: list[tuple[OpImpl, Exception]],
    ) -> None:
        """Run a call that some have failed at already, and believe their faults if it runs."""
        try:
            self._climb_down(args, kwargs, failed)
        except DeviceLostError as exc:
            self.table.lose(exc)
            raise
        except UsageError:
            raise
        except Exception as exc:
            if not failed:
                raise
            first = failed[0][1]
            # Everybody fails: it is the data, and the first error is the one to see.
            if is_fault(exc) or isinstance(exc, NoImplementationError):
                raise first from first.__cause__
            raise exc from first
        for impl, error in failed:
            self._save(impl, error, args, kwargs)
            self.table.condemn(impl, f"raised {describe(error)}")

    def _climb_down(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        failed: list[tuple[OpImpl, Exception]],
    ) -> None:
        spec, table = self.spec, self.table
        reasons = [f"{impl.provenance}: raised {describe(exc)}" for impl, exc in failed]
        tried = [impl for impl, _ in failed]
        for impl in self.chain:
            if impl in tried:
                continue
            started = False
            try:
                reason = table.quarantine.reason(impl, table.device)
                reason = reason or refusal(spec, impl, args, kwargs)
                if reason is None:
                    started = True
                    self._run(impl, args, kwargs)
                    return
            except Exception as exc:  # noqa: BLE001  (a stranger's code; sorted out there)
                self._failed(impl, exc, args, kwargs, started=started)
                failed.append((impl, exc))
                reason = f"raised {describe(exc)}"
            reasons.append(f"{impl.provenance}: {reason}")
        if self.split is not None:
            self.split(*args, **kwargs)
            return
        why = "; ".join(reasons) or self._rejections
        if not self.has_cpu:
            msg = f"{spec.name}: every candidate on {table.device.id} declined: {why}"
            raise NoImplementationError(msg)
        table.fallbacks.admit(
            spec.name, table.device.id, why, traffic(spec, table.cpu, args, kwargs)
        )
        run_on_cpu(spec, self.key, table.cpu, args, kwargs)

    def _run(self, impl: OpImpl, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not impl.strided:
            destinations = max(self.spec.outputs, 1)
            packed = self.table.placement.packed_rows
            args = (*args[:destinations], *map(packed, args[destinations:]))
            kwargs = {name: packed(value) for name, value in kwargs.items()}
        impl.fn(*args, **kwargs)

    def _failed(
        self,
        impl: OpImpl,
        exc: Exception,
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
            self.table.lose(exc)
        if not is_fault(exc) or _is_reference(impl):
            raise exc
        if not started or can_repeat(self.spec, args, kwargs):
            return
        if len(self.chain) == 1 and self.split is None and not self.has_cpu:
            raise exc
        reason = f"raised {describe(exc)}"
        self._save(impl, exc, args, kwargs, intact=False)
        self.table.condemn(impl, reason)
        msg = (
            f"{self.spec.name}: {impl.provenance} {reason} and may have overwritten its inputs: "
            f"the call cannot be repeated; others serve the next one"
        )
        raise PluginError(msg) from exc

    def _save(
        self,
        impl: OpImpl,
        exc: Exception,
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


def _is_reference(impl: OpImpl) -> bool:
    """The CPU reference says what is right: nobody takes over from it, nothing hides its errors."""
    return impl.provenance is not None and impl.provenance.plugin in ESSENTIAL


__all__ = ["Ladder", "refusal"]
