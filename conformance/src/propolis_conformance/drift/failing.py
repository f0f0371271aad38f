"""Keep the call at which an implementation raised."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from propolis import events
from propolis.dispatch import Handler
from propolis.wording import describe
from propolis_conformance.drift.call import SavedCall
from propolis_conformance.drift.facts import facts
from propolis_conformance.drift.file import free_path
from propolis_conformance.drift.file import save


if TYPE_CHECKING:
    from pathlib import Path

    from propolis import dispatch
    from propolis.records import OpImpl
    from propolis.tensor import Device


class Saver(Handler):
    """Writes calls of one device into a folder."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device = device
        self.folder = folder

    def failed(
        self, call: dispatch.Call, impl: OpImpl, error: BaseException, *, intact: bool
    ) -> None:
        """Write a call; where that fails it is logged, as the call itself is to go on."""
        op = call.spec.name
        plugin = impl.provenance.plugin if impl.provenance is not None else "?"
        try:
            found = facts(self.device, impl.provenance)
            found |= {"by": str(impl.provenance), "failure": f"raised {describe(error)}"}
            if not intact:
                found["inputs"] = "as the failing call left them"
            saved = replace(SavedCall.of(call.spec, call.args, call.attributes), facts=found)
            path = free_path(self.folder, op, plugin)
            save(saved, path)
        except Exception as exc:  # noqa: BLE001  (a full disk must not end a run)
            events.CALL_NOT_SAVED.emit(op=op, plugin=plugin, reason=describe(exc))
            return
        events.CALL_SAVED.emit(op=op, plugin=plugin, path=str(path))


__all__ = ["Saver"]
