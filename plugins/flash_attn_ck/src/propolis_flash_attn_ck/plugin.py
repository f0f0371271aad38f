"""The hooks of Composable Kernel's flash attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import DoctorCheck
from propolis import PluginInfo
from propolis import hookimpl


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis import Device
    from propolis import OpImpl


@hookimpl
def propolis_plugin() -> PluginInfo:
    """Who this plugin is."""
    description = "Composable Kernel's flash attention for Instinct GPUs"
    return PluginInfo("flash_attn_ck", api=1, description=description)


@hookimpl
def propolis_ops(device: Device) -> Iterable[OpImpl]:
    """Attention, on the architectures that it was compiled for."""
    if device.kind == "rocm":
        from propolis_flash_attn_ck.ops import implementations  # noqa: PLC0415  (for GPUs alone)

        yield from implementations(device.properties.arch)


@hookimpl
def propolis_doctor_checks() -> Iterable[DoctorCheck]:
    """Whether the GPUs of this machine find code objects."""
    from propolis_flash_attn_ck.doctor import code_objects  # noqa: PLC0415  (needs hip-python)

    yield DoctorCheck("flash_attn_ck.code-objects", code_objects)
