"""
The catalogue of ops.

``ops.add(a, b)`` allocates the result on the device of ``a``; ``ops.add.into(out, a,
b)`` writes it where told.  Which implementation runs is the business of the
device's dispatch table; ``propolis explain add`` shows it.

Each module here is a family, found by being here; what it declares with ``@op`` is here by its
name.  Type checkers read ``__init__.pyi``, which `make fix` writes.
"""

from __future__ import annotations

import importlib
import pkgutil

from propolis.opspec.spec import Op
from propolis.opspec.spec import OpSpec
from propolis.opspec.spec import PairOp
from propolis.opspec.spec import catalogue
from propolis.opspec.spec import functions
from propolis.opspec.tolerance import Tolerance


for _family in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_family.name}")
# After the families: one is called as an op of it.
_names = {**catalogue(), **functions()}
globals().update(_names)

__all__ = ["Op", "OpSpec", "PairOp", "Tolerance", "catalogue"]
__all__ += [*_names]  # noqa: PLE0604  (they are strings)
__all__.sort()
