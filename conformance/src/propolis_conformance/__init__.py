"""
Conformance: does a plugin do what the ops say?

For every op and dtype that a plugin declares, arguments are drawn (empty, odd, strided,
broadcast, aliased, of every size, NaN), and each call is judged: values, every element written,
nothing else touched, and what the plugin promises of determinism and capture.

Three ways in: ``propolis conformance PLUGIN``; ``pytest -p propolis_conformance.pytest_plugin
--pyargs propolis_conformance --propolis-plugin PLUGIN``; and :func:`run` with a :class:`Request`.
"""

from __future__ import annotations

from propolis_conformance.judge import Result
from propolis_conformance.pool import Request
from propolis_conformance.pool import run


__all__ = ["Request", "Result", "run"]
