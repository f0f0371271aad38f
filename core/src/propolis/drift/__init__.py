"""
Drift: single calls against their truth in float64, within a running model or from a file.

:class:`~propolis.drift.watch.Drift` judges a sample of a model's calls while it runs;
:class:`~propolis.drift.call.Call` is one call with its arguments, in memory or in a file;
:func:`~propolis.drift.replay.replay` runs one again.
"""

from __future__ import annotations

from propolis.drift.call import Call
from propolis.drift.call import HostTensor
from propolis.drift.file import load
from propolis.drift.file import save
from propolis.drift.replay import Replay
from propolis.drift.replay import replay
from propolis.drift.watch import Drift


__all__ = ["Call", "Drift", "HostTensor", "Replay", "load", "replay", "save"]
