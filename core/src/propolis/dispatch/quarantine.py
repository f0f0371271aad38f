"""
Implementations that raised: taken out of every table until what they depend on changes.

What counts is a fault of the implementation: any exception that is none of
Propolis's own, a :class:`PluginError`, and a :class:`DeviceError` other than a lost
device or one without memory.  An error that names the user's data (an index out of
range) is the user's.  A fault is only believed once a lower rung has done the same
call: where all fail, it is the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

from propolis import events
from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import OutOfMemoryError
from propolis.errors import PluginError
from propolis.errors import PropolisError
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.device import Device
    from propolis.ops._spec import OpSpec
    from propolis.records import OpImpl
    from propolis.records import Provenance


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An op of a plugin that may not run.

    Attributes:
        source: the plugin.
        op: the op's name.
        kind: the device kind it ran on.
        arch: the device's architecture.
        reason: what it raised.
    """

    source: Provenance
    op: str
    kind: str
    arch: str
    reason: str


@dataclass(slots=True)
class Quarantine:
    """
    What must not run in this process.

    Attributes:
        entries: by (plugin, op, device kind, architecture).
        keep: remembers a new entry beyond this process; None where nobody does.
    """

    entries: dict[tuple[str, str, str, str], Entry] = field(default_factory=dict)
    keep: Callable[[Entry], None] | None = None

    def reason(self, impl: OpImpl, device: Device) -> str | None:
        """Why the implementation may not run; None when it may."""
        if not self.entries or impl.provenance is None:
            return None
        place = (device.kind, device.properties.arch)
        entry = self.entries.get((impl.provenance.plugin, impl.op, *place))
        return entry.reason if entry is not None else None

    def add(self, impl: OpImpl, device: Device, reason: str) -> None:
        """Take an implementation out, log it, and remember it."""
        source, arch = impl.provenance, device.properties.arch
        if source is None or self.reason(impl, device) is not None:
            return
        entry = Entry(source, impl.op, device.kind, arch, reason)
        self.entries[source.plugin, impl.op, device.kind, arch] = entry
        events.OP_QUARANTINED.emit(
            op=impl.op,
            device=device.id,
            plugin=source.plugin,
            distribution=source.distribution,
            version=source.version,
            reason=reason,
        )
        if self.keep is not None:
            self.keep(entry)


def is_fault(exc: Exception) -> bool:
    """Whether an exception speaks against the implementation that raised it."""
    if isinstance(exc, DeviceLostError | OutOfMemoryError | MemoryError):
        return False
    return not isinstance(exc, PropolisError) or isinstance(exc, PluginError | DeviceError)


def can_repeat(spec: OpSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call that failed half way left its inputs as they were."""
    if spec.mutates:
        return False
    written = [out.storage for out in args[: spec.outputs]]
    read = (v for v in (*args[spec.outputs :], *kwargs.values()) if isinstance(v, Tensor))
    return not any(v.storage is storage for v in read for storage in written)
