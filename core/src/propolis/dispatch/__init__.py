"""Dispatch: from implementations to one bound callable per op and key."""

from __future__ import annotations

from propolis.dispatch.call import Call
from propolis.dispatch.call import Handler
from propolis.dispatch.fallback import FallbackLog
from propolis.dispatch.fallback import Tally
from propolis.dispatch.metrics import Metrics
from propolis.dispatch.placement import Placement
from propolis.dispatch.quarantine import Entry
from propolis.dispatch.quarantine import Quarantine
from propolis.dispatch.resolve import Parts
from propolis.dispatch.resolve import Server
from propolis.dispatch.resolve import Trace
from propolis.dispatch.resolve import Verdict
from propolis.dispatch.resolve import resolve
from propolis.dispatch.rules import Rules
from propolis.dispatch.table import DispatchTable


__all__ = [
    "Call",
    "DispatchTable",
    "Entry",
    "FallbackLog",
    "Handler",
    "Metrics",
    "Parts",
    "Placement",
    "Quarantine",
    "Rules",
    "Server",
    "Tally",
    "Trace",
    "Verdict",
    "resolve",
]
