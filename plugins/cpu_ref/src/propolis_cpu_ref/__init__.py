"""The CPU reference of Propolis: every op in numpy, clear before clever."""

from __future__ import annotations


__all__: list[str] = []
