"""Every event that the MIOpen plugin logs; see :mod:`propolis.events`."""

from __future__ import annotations

from typing import Final

from propolis.events import Event


MIOPEN_WORKING: Final = Event(
    "miopen.working",
    "warning",
    "MIOpen compiles or measures for a shape that is new on this machine, and has not ended yet; "
    "what it finds is kept",
    ("device", "what", "seconds"),
)
MIOPEN_DONE: Final = Event(
    "miopen.done",
    "warning",
    "what `miopen.working` spoke of has ended",
    ("device", "what", "seconds"),
)
MIOPEN_CHOSEN: Final = Event(
    "miopen.chosen",
    "info",
    "MIOpen's solution for a shape, as this process will use it",
    ("device", "what", "solution", "algorithm", "workspace", "found"),
)
MIOPEN_NOT_KEPT: Final = Event(
    "miopen.not_kept",
    "warning",
    "chosen solutions cannot be kept, so the next process asks for them again",
    ("path", "reason"),
)
MIOPEN_NOT_MEASURED: Final = Event(
    "miopen.not_measured",
    "warning",
    "the setting `tune` asks to measure a shape, and MIOpen cannot: what it expects is taken",
    ("device", "what", "reason"),
)
MIOPEN_NOT_COMPILED: Final = Event(
    "miopen.not_compiled",
    "warning",
    "MIOpen cannot compile one of its solutions, said once for each in a process: another one, or "
    "another plugin, serves such shapes",
    ("device", "what", "solution", "algorithm", "reason"),
)

ALL: Final = (
    MIOPEN_WORKING,
    MIOPEN_DONE,
    MIOPEN_CHOSEN,
    MIOPEN_NOT_KEPT,
    MIOPEN_NOT_MEASURED,
    MIOPEN_NOT_COMPILED,
)
