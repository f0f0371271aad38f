"""
What is drawn for each op and what is right: one file a family of core's catalogue.

A file is named as the family (``OpSpec.family``) and says ``OPS``, each op's recipes and truth.
It may name ops of newer and older catalogues: what a catalogue lacks is not asked for, and an op
without a recipe is reported as such.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Final

from propolis_conformance.op_info import OpInfo


def _found() -> dict[str, OpInfo]:
    modules = (import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__))
    return {name: info for module in modules for name, info in module.OPS.items()}


OPS: Final = _found()


def info_of(op: str) -> OpInfo:
    """Recipes and truth of an op by its name; neither of an op that no file names."""
    return OPS.get(op, OpInfo())


__all__ = ["OPS", "info_of"]
