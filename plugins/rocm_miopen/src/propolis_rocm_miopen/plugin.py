"""The hooks of the MIOpen plugin."""

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
    return PluginInfo("rocm_miopen", api=1, description="convolutions by MIOpen")


@hookimpl
def propolis_probe() -> ProbeResult:
    """Which library the plugin depends on; what a GPU can do with it is tried when it is opened."""
    from propolis_rocm_miopen.probe import probe  # noqa: PLC0415  (imports nothing before it is asked)

    return probe()


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """The convolutions, for any AMD GPU that MIOpen computes on."""
    if device.kind == "rocm":
        from propolis_rocm_miopen.ops_conv import implementations  # noqa: PLC0415

        yield from implementations(device)


@hookimpl
def propolis_doctor_checks() -> Iterable[DoctorCheck]:
    """What must be in order before MIOpen can be used."""
    from propolis_rocm_miopen.doctor import CHECKS  # noqa: PLC0415

    yield from CHECKS
