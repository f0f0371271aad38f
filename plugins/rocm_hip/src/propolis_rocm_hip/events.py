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
ROCM_COMPILING: Final = Event(
    "rocm.compiling",
    "warning",
    "hipRTC compiles kernels that no code object was shipped for, for the first time in this "
    "process; it takes seconds for each module, once",
    ("first", "arch", "kept_in", "note"),
)
ROCM_GRAPH_NOT_RECORDED: Final = Event(
    "rocm.graph_not_recorded",
    "warning",
    "a step does more than launch kernels, and is replayed call by call",
    ("device", "calls", "reason"),
)
ROCM_TRYING: Final = Event(
    "rocm.trying",
    "warning",
    "a vendor's library is tried in a process of its own, and has not answered yet; its answer is "
    "kept for the next start",
    ("library", "seconds", "at_most"),
)
ROCM_TRIED: Final = Event(
    "rocm.tried", "warning", "what `rocm.trying` spoke of has ended", ("library", "seconds")
)
ROCM_LIBRARY_FAILS: Final = Event(
    "rocm.library_fails",
    "warning",
    "a vendor's library is there and fails at its trial, so others do all or part of its work on "
    "that device; `propolis doctor` tries it again",
    ("device", "library", "reason", "instead"),
)

ALL: Final = (
    ROCM_CACHE_ENTRY_DAMAGED,
    ROCM_CACHE_NOT_WRITTEN,
    ROCM_COMPILING,
    ROCM_GRAPH_NOT_RECORDED,
    ROCM_TRYING,
    ROCM_TRIED,
    ROCM_LIBRARY_FAILS,
)
