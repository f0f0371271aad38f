"""Keep the call at which an implementation raised."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from propolis import events
from propolis.plugins.loader import describe
from propolis_conformance.drift.call import Call
from propolis_conformance.drift.facts import facts
from propolis_conformance.drift.file import free_path
from propolis_conformance.drift.file import save


if TYPE_CHECKING:
    from pathlib import Path

    from propolis.device import Device
    from propolis.ops import OpSpec
    from propolis.records import OpImpl


class Saver:
    """Writes calls of one device into a folder."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device = device
        self.folder = folder

    def __call__(
        self,
        spec: OpSpec,
        impl: OpImpl,
        exc: BaseException,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        intact: bool,
    ) -> None:
        """
        Write a call; where that fails it is logged, as the call itself is to go on.

        Args:
            spec: the op.
            impl: who raised.
            exc: what.
            args: destinations and arguments, as implementations receive them.
            kwargs: the keyword arguments.
            intact: whether the inputs are as they were before the call.
        """
        plugin = impl.provenance.plugin if impl.provenance is not None else "?"
        try:
            found = facts(self.device, impl.provenance)
            found |= {"by": str(impl.provenance), "failure": f"raised {describe(exc)}"}
            if not intact:
                found["inputs"] = "as the failing call left them"
            call = replace(Call.of(spec, args, kwargs), facts=found)
            path = free_path(self.folder, spec.name, plugin)
            save(call, path)
        except Exception as error:  # noqa: BLE001  (a full disk must not end a run)
            events.CALL_NOT_SAVED.emit(op=spec.name, plugin=plugin, reason=describe(error))
            return
        events.CALL_SAVED.emit(op=spec.name, plugin=plugin, path=str(path))


__all__ = ["Saver"]
