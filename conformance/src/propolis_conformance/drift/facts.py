"""Where a call comes from, and who says what it should have given."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING
from typing import Any

from propolis.cpu import CpuDevice
from propolis.dispatch.table import DispatchTable
from propolis.plugins.contract import check_impl
from propolis.records import ESSENTIAL


if TYPE_CHECKING:
    from propolis.dispatch import Server
    from propolis.records import Provenance
    from propolis.runtime import Runtime
    from propolis.tensor import Device


def facts(device: Device, source: Provenance | None) -> dict[str, Any]:
    """
    The device, the plugin and the versions that a call ran with.

    Args:
        device: where.
        source: whose implementation; None where it is nobody's alone.
    """
    found: dict[str, Any] = {
        "device": device.id,
        "device_name": device.properties.name,
        "arch": device.properties.arch,
        "python": platform.python_version(),
    }
    if source is not None:
        found |= {
            "plugin": source.plugin,
            "distribution": source.distribution,
            "version": source.version,
        }
    for name in ("propolis-core", "propolis-conformance", "numpy"):
        found[name] = importlib.metadata.version(name)
    return found


def served(server: Server) -> dict[str, Any]:
    """Who took a call, in words, and what it declares of how it computes."""
    impl = (server.cpu or server).impl
    said = {"exact": impl is None or impl.exact, "spreads": impl is not None and impl.spreads_nan}
    return {"by": str(server), **{name: int(is_so) for name, is_so in said.items()}}


def oracle(runtime: Runtime) -> Device:
    """A CPU of its own, which the reference alone serves."""
    cpu = CpuDevice()
    cpu.threads = runtime.cpu.threads
    reference = [
        check_impl(impl, source)
        for source, impls in runtime.plugins.each("propolis_ops", device=cpu)
        if source.plugin in ESSENTIAL
        for impl in impls
    ]
    cpu.table = DispatchTable(cpu, reference, cpu)
    return cpu


__all__ = ["facts", "oracle", "served"]
