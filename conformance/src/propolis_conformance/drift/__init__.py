"""
Drift: single calls against their truth in float64, within a running model or from a file.

:class:`.watch.Drift` judges a sample of a model's calls while it runs; :class:`.call.SavedCall`
is one call with its arguments, in memory or in a file; :func:`.replay.replay` runs one again.
"""

from __future__ import annotations

from propolis_conformance.drift.call import HostTensor
from propolis_conformance.drift.call import SavedCall
from propolis_conformance.drift.file import load
from propolis_conformance.drift.file import save
from propolis_conformance.drift.replay import Replay
from propolis_conformance.drift.replay import replay
from propolis_conformance.drift.watch import Drift


__all__ = ["Drift", "HostTensor", "Replay", "SavedCall", "load", "replay", "save"]
