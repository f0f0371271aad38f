"""
The quarantine on disk: what raised, or ended a process, is out until it may have changed.

An entry holds while the plugin's files and version, the libraries its probe named,
Python, the driver and the hardware are those it was made under.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
from functools import cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import events
from propolis.dispatch.quarantine import Entry
from propolis.dispatch.quarantine import Quarantine
from propolis.errors import ConfigError
from propolis.plugins import crash_file
from propolis.plugins.serial_file import SerialFile
from propolis.plugins.vetting import fault_of
from propolis.plugins.vetting import fingerprint
from propolis.plugins.vetting import read_json
from propolis.plugins.vetting import replace_json
from propolis.plugins.vetting import stamp
from propolis.records import ESSENTIAL
from propolis.records import Provenance


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence
    from pathlib import Path

    from propolis.plugins.crash_file import Crash
    from propolis.plugins.loader import PluginReport


_ENOUGH: Final = 200
"""Calls that a process waited for, of which one would have failed again, as far as can be told."""


class QuarantineFile:
    """Entries in ``quarantine.json`` of a cache folder; an unreadable file has none."""

    def __init__(self, cache_dir: Path) -> None:
        self.path = cache_dir / "quarantine.json"
        self.serial = SerialFile(cache_dir)

    def entries(self) -> list[Entry]:
        """All entries, whether they still hold or not."""
        return [entry for entry, _ in self._read()]

    def collect(self) -> list[tuple[Entry, str]]:
        """
        Take out what earlier processes crashed at, and log each crash.

        Where nobody knows at what, the next process that uses the device shall find out.

        Returns:
            The new entries, each with the key that it holds for.
        """
        found = []
        for crash in crash_file.collect(self.path.parent):
            report = str(crash.report)
            entries, reason = [], crash.reason
            for entry, key, sure in _crashed(crash):
                # Where that was of no use, what was launched last is the best guess there is.
                if sure or self.serial.was_tried(entry.kind):
                    entries.append((entry, key))
                    self.serial.remove(entry.kind)
                else:
                    reason = f"{entry.label} of {entry.source} {entry.reason}"
                    self.serial.add(entry.kind, f"process {crash.pid}: {reason}")
            if not entries:
                events.PROCESS_CRASHED.emit(pid=crash.pid, reason=reason, report=report)
            for entry, _ in entries:
                events.OP_CRASHED.emit(
                    pid=crash.pid,
                    op=entry.op,
                    dtypes=",".join(entry.dtypes),
                    variant=entry.variant,
                    kind=entry.kind,
                    arch=entry.arch,
                    plugin=entry.source.plugin,
                    distribution=entry.source.distribution,
                    version=entry.source.version,
                    reason=entry.reason,
                    report=report,
                )
            found += entries
        for new in found:
            self._add(new)
        return found

    def quarantine(self, reports: Sequence[PluginReport]) -> Quarantine:
        """
        The entries that hold for the plugins of this process; new ones are kept here.

        Earlier processes' crashes are collected first, and this one's would be.
        """
        by_name = {r.candidate.name: r for r in reports if r.status == "loaded"}
        keys = cache(lambda plugin: _key(by_name[plugin]))
        found = {}
        if fault := self.fault():
            events.CACHE_PASSED_OVER.emit(reason=fault)
        crashed = self.collect()  # the file may be one that cannot be written
        for entry, key in [*self._read(), *crashed]:
            if entry.source.plugin in by_name and key == keys(entry.source.plugin):
                found[entry.what] = entry

        def keep(entry: Entry) -> None:
            if entry.source.plugin in by_name:
                self._add((entry, keys(entry.source.plugin)))

        serialised = self.serial.kinds()

        def introduce(number: int, entry: Entry) -> None:
            if entry.source.plugin in by_name and entry.source.plugin not in ESSENTIAL:
                what = _as_dict(entry, keys(entry.source.plugin))
                what["serialised"] = entry.kind in serialised
                crash_file.introduce(self.path.parent, number, what)

        def settle(kind: str, found: bool) -> None:
            (self.serial.remove if found else self.serial.tried)(kind)
            crash_file.settled()

        quarantine = Quarantine(found, keep, introduce, serialised, self.serial.add, settle)
        if serialised:
            atexit.register(_settle, quarantine)
        return quarantine

    def clear(self, plugin: str | None = None, op: str | None = None) -> list[Entry]:
        """
        Forget the entries of a plugin, of an op, of both, or all, and what is looked for.

        Returns:
            Those that were forgotten.

        Raises:
            ConfigError: the file cannot be written.
        """
        gone = [
            entry
            for entry in self.entries()
            if plugin in (None, entry.source.plugin) and op in (None, entry.op)
        ]
        kept = [_as_dict(e, k) for e, k in self._read() if e not in gone]
        path = self.serial.path
        try:
            if plugin is None and op is None:
                path.unlink(missing_ok=True)
            path = self.path
            if gone or self.fault():
                replace_json(path, kept)
        except OSError as exc:
            msg = f"{path} cannot be written ({exc.strerror}); where it is removed, all are back"
            raise ConfigError(msg) from exc
        return gone

    def fault(self) -> str:
        """Why nobody is kept out, and what to do; none where the file says who is."""
        fault = fault_of(self.path, list)
        return fault and f"{fault}, so nobody is kept out: `propolis quarantine clear` starts anew"

    def _add(self, new: tuple[Entry, str]) -> None:
        """Add an entry; one made under older files is replaced."""
        others = [(e, k) for e, k in self._read() if e.what != new[0].what]
        with contextlib.suppress(OSError):  # a read-only home: it holds for this process
            replace_json(self.path, [_as_dict(e, k) for e, k in (*others, new)])

    def _read(self) -> list[tuple[Entry, str]]:
        found, read = read_json(self.path), []
        for item in found if isinstance(found, list) else ():
            with contextlib.suppress(AttributeError, KeyError, TypeError):  # another version's
                read.append((_entry(item), item["key"]))
        return read


def _entry(item: dict[str, Any]) -> Entry:
    """Raises as a dictionary does, or TypeError, where it is none."""
    source, dtypes = Provenance(**item["source"]), tuple(item["dtypes"])
    texts = {name: item[name] for name in ("op", "variant", "kind", "arch", "reason")}
    told = *texts.values(), item.get("key", ""), *dtypes, *dataclasses.astuple(source)
    if isinstance(item["dtypes"], str) or not all(isinstance(text, str) for text in told):
        raise TypeError
    return Entry(source=source, dtypes=dtypes, **texts)


def _crashed(crash: Crash) -> Iterator[tuple[Entry, str, bool]]:
    """
    The entries for what a process was running, each with the key that it holds for.

    And whether it is at fault: what a device does later is not known to be, except that a process
    which waits for each call is in one that it waits for.
    """
    for what, how, sure in crash.calls:
        with contextlib.suppress(KeyError, TypeError):  # another version's
            entry = _entry({**what, "reason": how})
            yield entry, what["key"], sure or entry.kind == "cpu"


def _settle(quarantine: Quarantine) -> None:
    """Look no further where a process waited for each call and ended as it should."""
    for kind, calls in list(quarantine.waited.items()):
        if calls >= _ENOUGH:
            quarantine.settled(kind)


def _as_dict(entry: Entry, key: str) -> dict[str, Any]:
    return {**dataclasses.asdict(entry), "key": key}


def _key(report: PluginReport) -> str:
    return fingerprint(report.candidate, *map(stamp, report.files))
