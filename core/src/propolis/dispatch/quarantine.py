"""
Implementations that raised or ended the process: taken out of every table.

What counts is a fault of the implementation: any exception that is none of
Propolis's own (``sys.exit`` among them), a :class:`PluginError`, and a
:class:`DeviceError` other than a lost device or one without memory.  An error that names
the user's data (an index out of range) is the user's.  A fault is only believed once a
lower rung has done the same call: where all fail, it is the data.

A plugin's fault holds until what it depends on changes.  A device's own error says less
of the implementation: the call is repeated first, and who is taken out for it is asked
again by the next process.

What is taken out is one implementation for one combination of dtypes: what a plugin
compiles, loads and launches as one kernel.  Its other dtypes are other kernels and stay;
its other shapes are not known to be better and go with it.  A plugin that has a kernel
for each head size says so with ``OpImpl.variant``, and loses one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from dataclasses import field
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import events
from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import DeviceNotFoundError
from propolis.errors import KernelFaultError
from propolis.errors import OutOfMemoryError
from propolis.errors import PluginError
from propolis.errors import PropolisError
from propolis.records import ESSENTIAL
from propolis.wording import describe


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis.opspec.spec import Key
    from propolis.records import OpImpl
    from propolis.records import Provenance
    from propolis.tensor import Device


GRAPHS: Final = "graph"
"""The ``op`` of the entry that keeps a device from making one launch of many calls."""

SERIALISED_FOR: Final = 600.0
"""Seconds of a process, from its first call on, for which calls are waited for one by one."""

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An implementation that may not run for some dtypes.

    Attributes:
        source: the plugin.
        op: the op's name; ``"graph"`` of what replays captured calls at once.
        variant: which of the plugin's implementations of it.
        dtypes: of the op's dispatch parameters, by name.
        kind: the device kind it ran on.
        arch: the device's architecture.
        reason: what it raised, or how it ended the process.
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
        return label_of(self, self.dtypes)


def label_of(impl: Entry | OpImpl, kinds: Sequence[str]) -> str:
    """An implementation for dtypes by these names, for people."""
    shown = f"({', '.join(kinds)})" if kinds else ""
    return " ".join(filter(None, (impl.op, shown, impl.variant)))


@dataclass(slots=True)
class Quarantine:
    """
    What must not run in this process.

    Attributes:
        entries: by :attr:`Entry.what`.
        keep: remembers a new entry beyond this process; None where nobody does.
        introduce: told what a number in the name of a frame means, before the frame is;
            None where nobody would read it.
        serialised: why each call on a kind of device is waited for before the next, by kind: an
            earlier process ended, and nobody knows at which.
        suspect: told of a kind of device, and why, that the next process shall do so.
        settle: told of a kind for which it is over, and whether it was found out.
        waited: how many calls were waited for, by kind, while no device of it was lost.
        alone: held while one is: other threads' calls are not to be taken for it.
    """

    entries: dict[tuple[Any, ...], Entry] = field(default_factory=dict)
    keep: Callable[[Entry], None] | None = None
    introduce: Callable[[int, Entry], None] | None = None
    serialised: dict[str, str] = field(default_factory=dict)
    suspect: Callable[[str, str], None] | None = None
    settle: Callable[[str, bool], None] | None = None
    waited: dict[str, int] = field(default_factory=dict)
    alone: RLock = field(default_factory=RLock, repr=False)
    _until: dict[str, float] = field(default_factory=dict, repr=False)
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict, repr=False)

    def reason(self, impl: OpImpl, key: Key, device: Device) -> str | None:
        """Why the implementation may not run for these dtypes; None when it may."""
        if not self.entries or impl.provenance is None:
            return None
        known = self.entries.get(_entry(impl.provenance, impl, key, device).what)
        return known.reason if known is not None else None

    def name(self, impl: OpImpl, key: Key, device: Device) -> str:
        """What frames are called that run the implementation: see :mod:`propolis.inflight`."""
        source = impl.provenance
        return impl.op if source is None else self._name(_entry(source, impl, key, device))

    def graphs(self, source: Provenance, device: Device) -> tuple[str, str | None]:
        """
        What the device's replays of captured calls are called, and why there may be none.

        Args:
            source: of the first of the calls.
            device: where they run.
        """
        entry = Entry(source, GRAPHS, "", (), device.kind, device.properties.arch, "")
        known = self.entries.get(entry.what)
        return self._name(entry), known.reason if known is not None else None

    def _name(self, entry: Entry) -> str:
        if self.introduce is None:
            return entry.op
        number = self._known.get(entry.what)
        if number is None:
            number = self._known[entry.what] = next(_numbers)
            self.introduce(number, entry)
        return f"{entry.op}#{number}"

    def add(
        self, impl: OpImpl, key: Key, device: Device, reason: str, *, lasting: bool = True
    ) -> None:
        """
        Take an implementation out for these dtypes, and log it.

        Args:
            impl: the implementation.
            key: the dtypes.
            device: where it failed.
            reason: what it raised.
            lasting: remember it beyond this process.
        """
        source = impl.provenance
        if source is None or self.reason(impl, key, device) is not None:
            return
        entry = _entry(source, impl, key, device, reason)
        self.entries[entry.what] = entry
        try:
            _log(entry, device, repeated=False)
            if lasting and self.keep is not None:
                self.keep(entry)
        except RecursionError:  # of an op that calls itself: said by a call that has room for it
            del self.entries[entry.what]
            raise

    def serialises(self, device: Device) -> bool:
        """Whether each call on the device is waited for, as things stand."""
        why = self.serialised.get(device.kind)
        if why is None:
            return False
        until = self._until.get(device.kind)
        if until is None:
            self._until[device.kind] = time.monotonic() + SERIALISED_FOR
            self.waited[device.kind] = 0
            events.DEVICE_SERIALISED.emit(device=device.id, reason=why)
        elif time.monotonic() > until:
            self.settled(device.kind)
            return False
        return True

    def settled(self, kind: str, *, found: bool = False) -> None:
        """Wait for no call of a kind of device any more, here and in later processes."""
        self.waited.pop(kind, None)
        if self.serialised.pop(kind, None) is not None and self.settle is not None:
            self.settle(kind, found)

    def blame(self, impl: OpImpl, key: Key, device: Device, error: DeviceLostError) -> None:
        """Take out who made a device fail, if it is known: the one call that was waited for."""
        if isinstance(error, KernelFaultError) and self.serialises(device):
            self.add(impl, key, device, f"raised {describe(error)}")
            self.settled(device.kind, found=True)

    def lost(self, device: Device) -> None:
        """Have the next process find out who made a device fail, where that may be found out."""
        self.waited.pop(device.kind, None)
        error, suspect = device.failure, self.suspect
        if not isinstance(error, KernelFaultError) or suspect is None:
            return
        if device.kind not in self.serialised:
            suspect(device.kind, f"a process lost {device.id}: {error}")

    def repeated(self, impl: OpImpl, key: Key, device: Device, reason: str) -> None:
        """Log that a call succeeded when it was repeated; nobody is taken out."""
        if impl.provenance is not None:
            _log(_entry(impl.provenance, impl, key, device, reason), device, repeated=True)


def _log(entry: Entry, device: Device, *, repeated: bool) -> None:
    event = events.OP_REPEATED if repeated else events.OP_QUARANTINED
    event.emit(
        op=entry.op,
        dtypes=",".join(entry.dtypes),
        variant=entry.variant,
        device=device.id,
        plugin=entry.source.plugin,
        distribution=entry.source.distribution,
        version=entry.source.version,
        reason=entry.reason,
    )


def _entry(source: Provenance, impl: OpImpl, key: Key, device: Device, reason: str = "") -> Entry:
    kinds = key if isinstance(key, tuple) else (key,)
    names = tuple(kind.name for kind in kinds)
    arch = device.properties.arch
    return Entry(source, impl.op, impl.variant, names, device.kind, arch, reason)


def is_fault(exc: BaseException) -> bool:
    """Whether what an implementation raised speaks against it."""
    if isinstance(exc, DeviceLostError | OutOfMemoryError | MemoryError):
        return False
    return not isinstance(exc, PropolisError) or isinstance(exc, PluginError | DeviceError)


def is_devices_own(exc: BaseException) -> bool:
    """Whether a device that lives refused: it may not the next time."""
    return isinstance(exc, DeviceError) and not isinstance(
        exc, DeviceLostError | DeviceNotFoundError
    )


def is_reference(impl: OpImpl) -> bool:
    """The CPU reference says what is right: nobody takes over from it, nothing hides its errors."""
    return impl.provenance is not None and impl.provenance.plugin in ESSENTIAL
