"""The hooks of the CPU reference."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import propolis_cpu_ref
from propolis import PluginInfo
from propolis import hookimpl
from propolis_cpu_ref._threads import limit_blas


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Device
    from propolis import OpImpl


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    return PluginInfo("cpu_ref", api=1, description="every op in numpy: the reference")


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """One implementation of each op, for the CPU; the families are the files ``ops_*.py``."""
    if device.kind == "cpu":
        limit_blas(device.threads)
        for module in pkgutil.iter_modules(propolis_cpu_ref.__path__, "propolis_cpu_ref."):
            if module.name.startswith("propolis_cpu_ref.ops_"):
                yield from importlib.import_module(module.name).OPS
