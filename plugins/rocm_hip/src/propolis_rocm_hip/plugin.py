"""The hooks of the ROCm runtime plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import PluginInfo
from propolis import ProbeResult
from propolis import hookimpl


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Config
    from propolis import DoctorCheck
    from propolis.records import DeviceProvider


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    return PluginInfo("rocm_hip", api=1, description="AMD GPUs through HIP: devices, no ops")


@hookimpl
def propolis_probe() -> ProbeResult:
    """Whether HIP loads and sees a GPU."""
    from propolis_rocm_hip.probe import probe  # noqa: PLC0415  (imports nothing before it is asked)

    return probe()


@hookimpl
def propolis_devices(config: Config) -> Iterable[DeviceProvider]:
    """The AMD GPUs."""
    from propolis_rocm_hip.device import RocmProvider  # noqa: PLC0415

    yield RocmProvider(config)


@hookimpl
def propolis_doctor_checks() -> Iterable[DoctorCheck]:
    """What must be in order before a GPU can be used."""
    from propolis_rocm_hip.doctor import CHECKS  # noqa: PLC0415

    yield from CHECKS
