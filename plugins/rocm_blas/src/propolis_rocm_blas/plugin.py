"""The hooks of the plugin for rocBLAS and hipBLASLt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import PluginInfo
from propolis import ProbeResult
from propolis import hookimpl


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Device
    from propolis import DoctorCheck
    from propolis import OpImpl


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    return PluginInfo("rocm_blas", api=1, description="matrix products by rocBLAS or hipBLASLt")


@hookimpl
def propolis_probe() -> ProbeResult:
    """Which libraries it depends on; what a GPU can do with them is tried when it is opened."""
    from propolis_rocm_blas.probe import probe  # noqa: PLC0415  (imports nothing before it is asked)

    return probe()


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """The products, for any AMD GPU that a library has machine code for."""
    if device.kind == "rocm":
        from propolis_rocm_blas.implementations import implementations  # noqa: PLC0415

        yield from implementations(device)


@hookimpl
def propolis_doctor_checks() -> Iterable[DoctorCheck]:
    """What must be in order before a library can be used."""
    from propolis_rocm_blas.doctor import CHECKS  # noqa: PLC0415

    yield from CHECKS
