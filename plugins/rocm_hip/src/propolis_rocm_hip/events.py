"""Every event that the HIP plugin logs; see :mod:`propolis.events`."""

from __future__ import annotations

from typing import Final

from propolis.events import Event


ROCM_CACHE_ENTRY_DAMAGED: Final = Event(
    "rocm.cache_entry_damaged",
    "warning",
    "a compiled kernel on disk is not what it was; it is compiled again",
    ("path", "reason"),
)
ROCM_CACHE_NOT_WRITTEN: Final = Event(
    "rocm.cache_not_written",
    "warning",
    "a compiled kernel cannot be kept, so the next process compiles it again",
    ("path", "reason"),
)
ROCM_GRAPH_NOT_RECORDED: Final = Event(
    "rocm.graph_not_recorded",
    "warning",
    "a step does more than launch kernels, and is replayed call by call",
    ("device", "calls", "reason"),
)

ALL: Final = (ROCM_CACHE_ENTRY_DAMAGED, ROCM_CACHE_NOT_WRITTEN, ROCM_GRAPH_NOT_RECORDED)
