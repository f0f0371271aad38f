"""
Every event that the core logs: its name, its fields, and when.

Names and fields are stable: scripts may rely on them.  Each is emitted from here alone,
so that docs/logging.md, which is generated from :data:`ALL`, lists what there is.  Workers and
plugins have an ``events.py`` of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC
from datetime import datetime
from typing import Any
from typing import Final
from typing import Literal

from propolis import log


@dataclass(frozen=True, slots=True)
class Event:
    """
    One kind of log line.

    Attributes:
        name: dotted, what it is about first.
        level: how severe it is.
        when: what it says, in one sentence.
        fields: what it carries, always all of it.
    """

    name: str
    level: Literal["debug", "info", "warning", "error"]
    when: str
    fields: tuple[str, ...]

    def emit(self, **fields: Any) -> None:
        """Log it, with a value for each of its fields."""
        if log.enabled(self.level):
            getattr(log.get_logger(), self.level)(self.name, **fields)

    def line(self, **fields: Any) -> str:
        """The JSON line of it, for what is printed at any ``log_level``."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        said = {**fields, "event": self.name, "level": self.level, "timestamp": now}
        return json.dumps(said, default=str) + "\n"


_PLUGIN: Final = ("plugin", "distribution", "version")

PLUGIN_LOADED: Final = Event("plugin.loaded", "info", "a plugin is in use", (*_PLUGIN, "hooks"))
PLUGIN_DISABLED: Final = Event(
    "plugin.disabled",
    "info",
    "the allow or deny list keeps an installed plugin out",
    (*_PLUGIN, "stage", "reason"),
)
PLUGIN_REJECTED: Final = Event(
    "plugin.rejected",
    "warning",
    "an installed plugin cannot be used",
    (*_PLUGIN, "stage", "reason"),
)
PLUGIN_UNAVAILABLE: Final = Event(
    "plugin.unavailable",
    "info",
    "an installed plugin says that this machine lacks what it needs",
    (*_PLUGIN, "stage", "reason"),
)
PLUGIN_DEPRECATED: Final = Event(
    "plugin.deprecated",
    "warning",
    "a plugin is written for an older [API level](plugins/api-levels.md), which a later version "
    "will not load",
    (*_PLUGIN, "api", "current", "remedy"),
)
PLUGIN_SLOW: Final = Event(
    "plugin.slow",
    "warning",
    "importing a plugin, or a hook of it, takes longer than so many seconds, and is waited for",
    (*_PLUGIN, "doing", "seconds"),
)
DEVICE_OPENED: Final = Event(
    "device.opened",
    "info",
    "a device other than the CPU is in use",
    ("device", "name", "arch", "plugin"),
)
DEVICE_MEMORY_IGNORED: Final = Event(
    "device.memory_ignored",
    "warning",
    "two plugins give an allocator for a device; the second is not used",
    ("device", "plugin", "taken_from"),
)
DEVICE_LOST: Final = Event(
    "device.lost",
    "error",
    "a device failed for good: every later call on it is an error",
    ("device", "reason"),
)
OP_FALLBACK: Final = Event(
    "op.fallback",
    "warning",
    "an op of another device ran on the CPU, for the first time for this reason (after eight "
    'reasons of one op: "other reasons")',
    ("op", "device", "to", "reason"),
)
OP_QUARANTINED: Final = Event(
    "op.quarantined",
    "warning",
    "an implementation raised, another one did the call, and it stays out from now on for "
    "these dtypes (until the process ends, where it was an error of the device's own)",
    ("op", "dtypes", "variant", "device", *_PLUGIN, "reason"),
)
OP_REPEATED: Final = Event(
    "op.repeated",
    "warning",
    "a device refused a call once and did it when it was asked again, for the first time for "
    "this op and these dtypes",
    ("op", "dtypes", "variant", "device", *_PLUGIN, "reason"),
)
OP_CRASHED: Final = Event(
    "op.crashed",
    "warning",
    "an implementation ended an earlier process (`pid`) by a signal, or was launched last before "
    "one did, and stays out from now on for these dtypes; `report` is the file with the stack",
    ("pid", "op", "dtypes", "variant", "kind", "arch", *_PLUGIN, "reason", "report"),
)
PROCESS_CRASHED: Final = Event(
    "process.crashed",
    "warning",
    "an earlier process ended by a signal in native code, and no plugin's op was running, or a "
    "device had several to do, or a mapped file became shorter",
    ("pid", "reason", "report"),
)
DEVICE_SERIALISED: Final = Event(
    "device.serialised",
    "warning",
    "each call on a device is waited for, which takes longer: an earlier process ended and nobody "
    "knows at which; for ten minutes, or until it is known",
    ("device", "reason"),
)
QUARANTINE_CLEARED: Final = Event(
    "quarantine.cleared",
    "info",
    "`propolis quarantine clear` lets an implementation back",
    ("op", "dtypes", "variant", *_PLUGIN, "kind", "arch"),
)
CACHE_PASSED_OVER: Final = Event(
    "cache.passed_over",
    "warning",
    "a file of the cache is damaged or cannot be read: what it said is not known",
    ("reason",),
)
CALL_SAVED: Final = Event(
    "call.saved",
    "info",
    "the call at which an implementation raised is in a file (`save_failing_calls`), for "
    "`propolis replay`",
    ("op", "plugin", "path"),
)
CALL_NOT_SAVED: Final = Event(
    "call.not_saved", "warning", "it should be, and cannot", ("op", "plugin", "reason")
)
CONFIG_UNKNOWN_VARIABLE: Final = Event(
    "config.unknown_variable",
    "warning",
    "a `PROPOLIS_*` variable is set that means nothing",
    ("name", "did_you_mean"),
)
CLI_ERROR: Final = Event(
    "cli.error",
    "error",
    "a command ends with an error: what is the line `error: ...` on the console (`log_format` is "
    "`json`; so are the next two)",
    ("message", "exit_code", "traceback"),
)
CLI_TEXT: Final = Event(
    "cli.text",
    "info",
    "a line for people: rates, notes, the placement summary, what a plugin prints; at any "
    "`log_level`",
    ("text",),
)
PYTHON_WARNING: Final = Event(
    "python.warning",
    "warning",
    "Python code warns (`warnings.warn`)",
    ("message", "category", "file", "line"),
)

ALL: Final = tuple(value for value in globals().copy().values() if isinstance(value, Event))
"""Every event, in the order above."""
