"""Plugins: found by metadata, vetted in a child process, loaded one by one."""

from __future__ import annotations

from propolis.plugins.discovery import Candidate
from propolis.plugins.discovery import discover
from propolis.plugins.loader import PluginHost
from propolis.plugins.loader import PluginReport


__all__ = ["Candidate", "PluginHost", "PluginReport", "discover"]
