"""The workers of Propolis: models written with the ops of core, and no plugin imported."""

from __future__ import annotations


__all__: list[str] = []
