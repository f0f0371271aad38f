"""
The quarantine on disk: what raised stays out until something it depends on changes.

An entry holds while the plugin's files and version, the libraries its probe named,
Python, the driver and the hardware are those it was made under.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING
from typing import Any

from propolis.dispatch.quarantine import Entry
from propolis.dispatch.quarantine import Quarantine
from propolis.errors import ConfigError
from propolis.plugins.vetting import fingerprint
from propolis.plugins.vetting import read_json
from propolis.plugins.vetting import replace_json
from propolis.plugins.vetting import stamp
from propolis.records import Provenance


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence
    from pathlib import Path

    from propolis.plugins.loader import PluginReport


class QuarantineFile:
    """Entries in ``quarantine.json`` of a cache folder; an unreadable file has none."""

    def __init__(self, cache_dir: Path) -> None:
        self.path = cache_dir / "quarantine.json"

    def entries(self) -> list[Entry]:
        """All entries, whether they still hold or not."""
        return [entry for entry, _ in self._read()]

    def quarantine(self, reports: Sequence[PluginReport]) -> Quarantine:
        """The entries that hold for the plugins of this process; new ones are kept here."""
        by_name = {r.candidate.name: r for r in reports if r.status == "loaded"}
        found = {}
        for entry, key in self._read():
            report = by_name.get(entry.source.plugin)
            if report is not None and key == _key(report):
                found[entry.what] = entry

        def keep(entry: Entry) -> None:
            report = by_name.get(entry.source.plugin)
            if report is not None:
                self._change(lambda all_: [*_without(all_, entry), (entry, _key(report))])

        return Quarantine(found, keep)

    def clear(self, plugin: str | None = None, op: str | None = None) -> list[Entry]:
        """
        Forget the entries of a plugin, of an op, of both, or all.

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
        try:
            if gone:
                replace_json(self.path, kept)
        except OSError as exc:
            msg = f"{self.path} cannot be written: {exc}; remove it to let back all"
            raise ConfigError(msg) from exc
        return gone

    def _change(self, change: Callable[[list[tuple[Entry, str]]], list[tuple[Entry, str]]]) -> None:
        with contextlib.suppress(OSError):  # a read-only home: it holds for this process
            replace_json(self.path, [_as_dict(e, k) for e, k in change(self._read())])

    def _read(self) -> list[tuple[Entry, str]]:
        found = read_json(self.path)
        try:
            return [
                (_entry(item), item["key"]) for item in (found if isinstance(found, list) else [])
            ]
        except (KeyError, TypeError):
            return []


def _entry(item: dict[str, Any]) -> Entry:
    source, dtypes = Provenance(**item["source"]), tuple(item["dtypes"])
    texts = {name: item[name] for name in ("op", "variant", "kind", "arch", "reason")}
    return Entry(source=source, dtypes=dtypes, **texts)


def _without(all_: list[tuple[Entry, str]], entry: Entry) -> list[tuple[Entry, str]]:
    """The others: an entry made under older files is replaced."""
    return [(e, k) for e, k in all_ if e.what != entry.what]


def _as_dict(entry: Entry, key: str) -> dict[str, Any]:
    return {**dataclasses.asdict(entry), "key": key}


def _key(report: PluginReport) -> str:
    return fingerprint(report.candidate, *map(stamp, report.files))
