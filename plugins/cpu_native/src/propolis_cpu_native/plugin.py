"""The hooks of the CPU kernels."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import propolis_cpu_native
from propolis import PluginInfo
from propolis import ProbeResult
from propolis import hookimpl
from propolis.errors import PluginError
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Device
    from propolis import OpImpl


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    return PluginInfo("cpu_native", api=1, description="CPU kernels in C++, for x86-64 and Arm")


@hookimpl
def propolis_probe() -> ProbeResult:
    """Whether the kernels for this CPU load."""
    try:
        module = native()
    except PluginError as exc:
        return ProbeResult(ok=False, reason=str(exc))
    return ProbeResult(ok=True, files=(str(module.__file__),))


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """What the kernels do, for the CPU; the families are the files ``ops_*.py``."""
    if device.kind == "cpu":
        for module in pkgutil.iter_modules(propolis_cpu_native.__path__, "propolis_cpu_native."):
            if module.name.startswith("propolis_cpu_native.ops_"):
                yield from importlib.import_module(module.name).OPS
