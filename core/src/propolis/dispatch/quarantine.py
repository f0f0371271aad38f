"""
Implementations that raised: taken out of every table until what they depend on changes.

What counts is a fault of the implementation: any exception that is none of
Propolis's own, a :class:`PluginError`, and a :class:`DeviceError` other than a lost
device or one without memory.  An error that names the user's data (an index out of
range) is the user's.  A fault is only believed once a lower rung has done the same
call: where all fail, it is the data.

What is taken out is one implementation for one combination of dtypes: what a plugin
compiles, loads and launches as one kernel.  Its other dtypes are other kernels and stay;
its other shapes are not known to be better and go with it.  A plugin that has a kernel
for each head size says so with ``OpImpl.variant``, and loses one.
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
from propolis.plugins.discovery import ESSENTIAL
from propolis.released import storage_of
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.device import Device
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec
    from propolis.records import OpImpl
    from propolis.records import Provenance


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An implementation that may not run for some dtypes.

    Attributes:
        source: the plugin.
        op: the op's name.
        variant: which of the plugin's implementations of it.
        dtypes: of the op's dispatch parameters, by name.
        kind: the device kind it ran on.
        arch: the device's architecture.
        reason: what it raised.
    """

    source: Provenance
    op: str
    variant: str
    dtypes: tuple[str, ...]
    kind: str
    arch: str
    reason: str

    @property
    def what(self) -> tuple[str, str, str, tuple[str, ...], str, str]:
        """What may not run, and where: there is one entry for each."""
        return (self.source.plugin, self.op, self.variant, self.dtypes, self.kind, self.arch)

    @property
    def label(self) -> str:
        """The implementation for people: ``attention (f16) hd64``."""
        return f"{self.op} ({', '.join(self.dtypes)}) {self.variant}".rstrip()


@dataclass(slots=True)
class Quarantine:
    """
    What must not run in this process.

    Attributes:
        entries: by :attr:`Entry.what`.
        keep: remembers a new entry beyond this process; None where nobody does.
    """

    entries: dict[tuple[Any, ...], Entry] = field(default_factory=dict)
    keep: Callable[[Entry], None] | None = None

    def reason(self, impl: OpImpl, key: Key, device: Device) -> str | None:
        """Why the implementation may not run for these dtypes; None when it may."""
        if not self.entries or impl.provenance is None:
            return None
        known = self.entries.get(_entry(impl.provenance, impl, key, device).what)
        return known.reason if known is not None else None

    def add(self, impl: OpImpl, key: Key, device: Device, reason: str) -> None:
        """Take an implementation out for these dtypes, log it, and remember it."""
        source = impl.provenance
        if source is None or self.reason(impl, key, device) is not None:
            return
        entry = _entry(source, impl, key, device, reason)
        self.entries[entry.what] = entry
        events.OP_QUARANTINED.emit(
            op=entry.op,
            dtypes=",".join(entry.dtypes),
            variant=entry.variant,
            device=device.id,
            plugin=source.plugin,
            distribution=source.distribution,
            version=source.version,
            reason=reason,
        )
        if self.keep is not None:
            self.keep(entry)


def _entry(source: Provenance, impl: OpImpl, key: Key, device: Device, reason: str = "") -> Entry:
    kinds = key if isinstance(key, tuple) else (key,)
    names = tuple(kind.name for kind in kinds)
    arch = device.properties.arch
    return Entry(source, impl.op, impl.variant, names, device.kind, arch, reason)


def is_fault(exc: Exception) -> bool:
    """Whether an exception speaks against the implementation that raised it."""
    if isinstance(exc, DeviceLostError | OutOfMemoryError | MemoryError):
        return False
    return not isinstance(exc, PropolisError) or isinstance(exc, PluginError | DeviceError)


def is_reference(impl: OpImpl) -> bool:
    """The CPU reference says what is right: nobody takes over from it, nothing hides its errors."""
    return impl.provenance is not None and impl.provenance.plugin in ESSENTIAL


def can_repeat(spec: OpSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call that failed half way left its inputs as they were."""
    if spec.mutates:
        return False
    written = [out.storage for out in args[: spec.outputs]]
    read = (v for v in (*args[spec.outputs :], *kwargs.values()) if isinstance(v, Tensor))
    return not any(storage_of(v) is storage for v in read for storage in written)
