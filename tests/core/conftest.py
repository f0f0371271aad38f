"""Fakes that the tests of core share."""

from __future__ import annotations

from fakes import cli
from fakes import cpu
from fakes import fakes
from fakes import private_settings
from fakes import python
from fakes import runtime
from fakes import site
from fakes import sources
from fakes import unvetted


__all__ = [
    "cli",
    "cpu",
    "fakes",
    "private_settings",
    "python",
    "runtime",
    "site",
    "sources",
    "unvetted",
]
