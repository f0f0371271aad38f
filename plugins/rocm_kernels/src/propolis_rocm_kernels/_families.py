"""The modules of this distribution: found by their names, listed nowhere."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Protocol
from typing import cast

from propolis.errors import PluginError
from propolis_rocm_kernels import _code


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis import OpImpl
    from propolis_rocm_kernels._kernels import Module


class Family(Protocol):
    """
    An ``ops_<name>.py``, whose name is, or begins with, that of a family of core's catalogue.

    Attributes:
        MODULE: what it declares of ``native/<name>.hip``.
        OPS: what it implements; none where another file of the family launches its kernels.
    """

    MODULE: Module
    OPS: Sequence[OpImpl]


@cache
def families() -> tuple[Family, ...]:
    """Every ``ops_*.py``, by name."""
    here = [str(Path(__file__).parent)]
    names = sorted(n for _, n, _ in pkgutil.iter_modules(here) if n.startswith("ops_"))
    return tuple(cast("Family", import_module(f"propolis_rocm_kernels.{name}")) for name in names)


def modules() -> dict[str, Module]:
    """
    What is compiled, by name.

    Raises:
        PluginError: a ``.hip`` has no ``ops_*.py`` of its name, or the other way round.
    """
    found = {family.MODULE.name: family.MODULE for family in families()}
    sources = {path.stem for path in _code.NATIVE.glob("*.hip")}
    if alone := sorted(sources ^ set(found)):
        lacks = ", ".join(
            f"ops_{n}.py for {n}.hip" if n in sources else f"{n}.hip for ops_{n}.py" for n in alone
        )
        msg = f"a module is native/<name>.hip and ops_<name>.py with Module('<name>'); add {lacks}"
        raise PluginError(msg)
    return found
