"""
What was measured to be fastest, on disk, until a plugin, a driver or the hardware is another.

A set of choices holds for the plugins that took part: for their files and versions, the
libraries their probes named, Python, the driver and the hardware.  Sets of other plugins are
kept beside it, as of runs that load only some.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import events
from propolis.dispatch.tuned import Choice
from propolis.dispatch.tuned import Tuned
from propolis.errors import ConfigError
from propolis.plugins.vetting import fault_of
from propolis.plugins.vetting import fingerprint
from propolis.plugins.vetting import read_json
from propolis.plugins.vetting import replace_json
from propolis.plugins.vetting import stamp


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Sequence
    from pathlib import Path
    from typing import TypeAlias

    from propolis.plugins.loader import PluginReport

    Measured: TypeAlias = tuple[str, str, Sequence[str], str]

_SETS: Final = 8
"""Sets that are kept; the oldest goes."""


class TunedFile:
    """Choices in ``tuned.json`` of a cache folder; an unreadable file has none."""

    def __init__(self, cache_dir: Path) -> None:
        self.path = cache_dir / "tuned.json"

    def tuned(self, reports: Sequence[PluginReport]) -> Tuned:
        """The choices that hold for the plugins of this process."""
        found, sets = Tuned(), self._read()
        if not sets and (fault := self.fault()):
            events.CACHE_PASSED_OVER.emit(reason=fault)
        # Where there are none nobody looks at the plugins' files: each process starts here.
        for row in sets.get(_plugins(reports), []) if sets else ():
            with contextlib.suppress(
                AttributeError, KeyError, TypeError, ValueError
            ):  # another version's
                who = row["choice"]
                seconds = {str(name): float(took) for name, took in who["seconds"].items()}
                choice = Choice(str(who["plugin"]), str(who["variant"]), seconds)
                seconds[choice.taken]  # or it cannot be told
                where, op, calls = (str(row[name]) for name in ("device", "op", "calls"))
                found.add(where, op, list(map(str, row["dtypes"])), calls, choice)
        return found

    def keep(
        self, reports: Sequence[PluginReport], new: Tuned, measured: Iterable[Measured] = ()
    ) -> None:
        """
        Add choices to those that hold for these plugins; processes take turns.

        Args:
            reports: the plugins.
            new: the choices.
            measured: device, op, dtypes and class of all calls that were measured: what was chosen
                for them before counts no longer.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            with self._turn():
                self._add(reports, new, measured)
        except OSError as exc:
            msg = f"{self.path} cannot be written: {exc}; choose another cache_dir"
            raise ConfigError(msg) from exc

    def _add(
        self, reports: Sequence[PluginReport], new: Tuned, measured: Iterable[Measured]
    ) -> None:
        whole = self.tuned(reports)
        for gone in measured:
            whole.discard(*gone)
        for device, op, kinds, calls, choice in new.rows():
            whole.add(device, op, kinds, calls, choice)
        rows = [
            {
                "device": device,
                "op": op,
                "dtypes": list(kinds),
                "calls": calls,
                "choice": dataclasses.asdict(choice),
            }
            for device, op, kinds, calls, choice in whole.rows()
        ]
        sets, own = self._read(), _plugins(reports)
        sets.pop(own, None)
        replace_json(self.path, dict([*sets.items(), (own, rows)][-_SETS:]))

    def fault(self) -> str:
        """Why choices are passed over, and what to do; none where they are not."""
        fault = fault_of(self.path, dict)
        return fault and f"{fault} and counts for nothing: `propolis tune forget` removes it"

    def clear(self) -> bool:
        """
        Forget every choice; whether there was a file.

        Raises:
            ConfigError: it cannot be removed.
        """
        try:
            if not self.path.exists():  # nor need there be a folder that can be written
                return False
            with self._turn():
                self.path.unlink(missing_ok=True)
        except OSError as exc:
            msg = f"{self.path} cannot be removed: {exc}"
            raise ConfigError(msg) from exc
        return True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Let processes take turns, where the file system knows how."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f"{self.path.name}.lock").open("a") as turn:
            with contextlib.suppress(OSError):
                fcntl.flock(turn, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, list[Any]]:
        found = read_json(self.path)
        if not isinstance(found, dict):
            return {}
        return {str(key): rows for key, rows in found.items() if isinstance(rows, list)}


def _plugins(reports: Sequence[PluginReport]) -> str:
    """What the choices of some plugins hold for."""
    keys = sorted(
        f"{r.candidate.name} {fingerprint(r.candidate, *map(stamp, r.files))}"
        for r in reports
        if r.status == "loaded"
    )
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


__all__ = ["TunedFile"]
