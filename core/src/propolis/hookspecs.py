"""
The hooks that a plugin may implement, all of them optional but the first.

A plugin is a module (or any object) named by an entry point of the group
``propolis.plugins``; the entry point's name is the plugin's name.  Core calls
each hook once per process (``propolis_ops`` and ``propolis_storage`` once per
device) to *collect* records; no op ever runs through a hook.  A plugin's function
may take fewer arguments than the specification gives.

The smallest plugin::

    >>> from propolis import OpImpl, PluginInfo, dtypes, hookimpl
    >>> class plugin:
    ...     @staticmethod
    ...     @hookimpl
    ...     def propolis_plugin():
    ...         return PluginInfo("doubler", api=1, description="adds by doubling")
    ...
    ...     @staticmethod
    ...     @hookimpl
    ...     def propolis_ops(device):
    ...         def add(out, a, b, /):
    ...             out.array[...] = a.array + b.array
    ...
    ...         if device.kind == "cpu":
    ...             yield OpImpl(op="add", fn=add, dtypes={dtypes.f32}, priority=10)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis.config import Config
    from propolis.records import DeviceProvider
    from propolis.records import DoctorCheck
    from propolis.records import OpImpl
    from propolis.records import PluginInfo
    from propolis.records import ProbeResult
    from propolis.storage import Memory
    from propolis.tensor import Device


PROJECT = "propolis"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def propolis_plugin() -> PluginInfo:  # type: ignore[empty-body]
    """
    Say who the plugin is and which API level it is written for.

    >>> from propolis import PluginInfo, hookimpl
    >>> @hookimpl
    ... def propolis_plugin():
    ...     return PluginInfo("rocm_blas", api=(1, 1), description="rocBLAS matmul")
    >>> propolis_plugin().api_range
    (1, 1)
    """


@hookspec
def propolis_probe() -> ProbeResult:  # type: ignore[empty-body]
    """
    Say whether this machine can use the plugin.  Runs in a child process.

    The child may abort, segfault or hang: the plugin is then rejected and the
    worker lives.  Load native libraries here, and name them in ``files``.

    >>> import ctypes.util
    >>> from propolis import ProbeResult, hookimpl
    >>> @hookimpl
    ... def propolis_probe():
    ...     library = ctypes.util.find_library("no-such-library")
    ...     if library is None:
    ...         return ProbeResult(False, "libno-such-library is missing: install it")
    ...     return ProbeResult(True, files=(library,))
    >>> propolis_probe().ok
    False
    """


@hookspec
def propolis_devices(config: Config) -> Iterable[DeviceProvider]:  # type: ignore[empty-body]
    """
    Give a provider for each kind of device the plugin knows.

    >>> from propolis import Device, DeviceProperties, hookimpl
    >>> from propolis.cpu import CpuMemory
    >>> class Provider:
    ...     kind = "toy"
    ...     def enumerate(self):
    ...         yield DeviceProperties("toy", 0, "Toy One", arch="toy1")
    ...     def open(self, index):
    ...         return Device(list(self.enumerate())[index], CpuMemory())
    >>> @hookimpl
    ... def propolis_devices(config):
    ...     yield Provider()
    >>> [p.kind for p in propolis_devices(None)]
    ['toy']
    """


@hookspec
def propolis_storage(device: Device) -> Memory | None:
    """
    Give another allocator for ``device``, or None to leave the device its own.

    The first plugin, in order of distribution and plugin name, that gives one is
    taken; two that do are reported.

    >>> from propolis import hookimpl
    >>> from propolis.cpu import CpuMemory
    >>> @hookimpl
    ... def propolis_storage(device):
    ...     return CpuMemory() if device.kind == "toy" else None
    """


@hookspec
def propolis_ops(device: Device) -> Iterable[OpImpl]:  # type: ignore[empty-body]
    """
    Give the implementations that the plugin has for ``device``.

    Declare from ``device.kind`` and ``device.properties`` alone: the device may be one
    that is described and not present (see ``propolis op-matrix``), and then nothing can be
    allocated or queried.  Libraries are for the functions to open when they first run.  What a
    child process found out about one that is present goes into ``OpImpl.unusable``.

    >>> from propolis import OpImpl, Priority, dtypes, hookimpl
    >>> def fast_add(out, a, b, /): ...
    >>> @hookimpl
    ... def propolis_ops(device):
    ...     yield OpImpl(op="add", fn=fast_add, device="rocm", dtypes={dtypes.f32},
    ...                  archs=frozenset({"gfx1100"}), priority=Priority.GENERIC)
    >>> [impl.op for impl in propolis_ops(None)]
    ['add']
    """


@hookspec
def propolis_doctor_checks() -> Iterable[DoctorCheck]:  # type: ignore[empty-body]
    """
    Give health checks, each with a remedy.

    >>> import os
    >>> from propolis import CheckResult, DoctorCheck, hookimpl
    >>> def kfd():
    ...     if os.path.exists("/dev/no-such-device"):
    ...         return CheckResult("ok", "the driver is loaded")
    ...     return CheckResult("error", "no driver", remedy="load amdgpu")
    >>> @hookimpl
    ... def propolis_doctor_checks():
    ...     yield DoctorCheck("rocm_hip.driver", kfd)
    >>> next(propolis_doctor_checks()).run().remedy
    'load amdgpu'
    """
