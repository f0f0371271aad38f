"""What the AMD GPUs of this machine say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis import DeviceProperties
from propolis.errors import DeviceNotFoundError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip.codeobject import base_arch


if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "rocm"
NO_DEVICE: Final = 100
INVALID_DEVICE: Final = 101

VISIBILITY: Final = (
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",  # HIP heeds it too
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
"""Variables that hide GPUs."""

WARPS: Final = {
    "gfx90a": 64,
    "gfx942": 64,
    "gfx1030": 32,
    "gfx1100": 32,
    "gfx1101": 32,
    "gfx1102": 32,
    "gfx1151": 32,
    "gfx1200": 32,
    "gfx1201": 32,
}
"""The architectures that the ROCm plugins are written for, and the threads of a warp on each."""

_PCI: Final = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Hardware:
    """
    One GPU.

    Attributes:
        properties: what core knows of it.
        warp_size: lanes of a wave, 32 or 64.
        compute_units: its compute units.
        shared_bytes: LDS that a block may use, in bytes.
        max_threads: threads that a block may have.
        integrated: it shares the host's memory (an APU).
    """

    properties: DeviceProperties
    warp_size: int
    compute_units: int
    shared_bytes: int
    max_threads: int
    integrated: bool


def count() -> int:
    """
    The number of visible GPUs; 0 is a valid answer.

    Raises:
        DeviceError: there is no HIP library, or it fails otherwise.
    """
    code, found = _ffi.hip().hipGetDeviceCount()
    if int(code) in (NO_DEVICE, INVALID_DEVICE):
        return 0
    if code:
        raise _ffi.failure(KIND, "hipGetDeviceCount", int(code))
    return int(found)


def describe(index: int) -> Hardware:
    """
    One visible GPU.

    Raises:
        DeviceNotFoundError: there is none of that index.
        DeviceError: the library is older than ROCm 6, or the driver refuses.
    """
    visible = count()
    if not 0 <= index < visible:
        msg = f"no device {KIND}:{index}: {visible} visible; `propolis devices` lists them"
        raise DeviceNotFoundError(msg)
    _ffi.require_modern()
    raw = _ffi.call(f"{KIND}:{index}", "hipGetDeviceProperties", index)
    full = str(raw.gcnArchName)
    integrated = bool(raw.integrated)
    pci = f"{raw.pciDomainID:04x}:{raw.pciBusID:02x}:{raw.pciDeviceID:02x}.0"
    total, note = (
        usable_memory(int(raw.totalGlobalMem), pci)
        if integrated
        else (
            int(raw.totalGlobalMem),
            "dedicated",
        )
    )
    properties = DeviceProperties(
        kind=KIND,
        index=index,
        name=str(raw.name) or full,
        arch=base_arch(full),
        total_memory=total,
        extra={
            "target": full,
            "compute_units": str(raw.multiProcessorCount),
            "warp_size": str(raw.warpSize),
            "memory": note,
            "pci": pci,
            **_played(full),
        },
    )
    return Hardware(
        properties=properties,
        warp_size=int(raw.warpSize),
        compute_units=int(raw.multiProcessorCount),
        shared_bytes=int(raw.sharedMemPerBlock),
        max_threads=int(raw.maxThreadsPerBlock),
        integrated=integrated,
    )


def _played(arch: str) -> dict[str, str]:
    """What is under a HIP that is not AMD's, so that nobody takes its reports for a card's."""
    if arch.startswith("gfx"):
        return {}
    if arch.startswith("sm_"):
        return {"simulator": "hipsim, cuda flavour: an NVIDIA GPU"}
    return {"simulator": "hipsim, host flavour: this machine's CPU"}


def enumerate_gpus() -> Iterator[DeviceProperties]:
    """All visible GPUs."""
    for index in range(count()):
        yield describe(index).properties


def described_gpus() -> Iterator[DeviceProperties]:
    """A GPU of each architecture that we are written for, present or not."""
    for arch, warp in WARPS.items():
        extra = {"warp_size": str(warp)}
        yield DeviceProperties(KIND, 0, f"any GPU of {arch}", arch, extra=extra)


def usable_memory(reported: int, pci: str, root: Path = _PCI) -> tuple[int, str]:
    """
    Memory that tensors on an APU can use, and how that is known.

    An APU has a carve-out of the host's memory ("VRAM") and may map more of it ("GTT").
    The driver allocates from one of the two, the larger; some releases report the sum.

    Args:
        reported: bytes that HIP reports.
        pci: the device's address.
        root: where the kernel lists PCI devices.
    """
    sizes = [_number(root / pci / f"mem_info_{kind}_total") for kind in ("vram", "gtt")]
    if None in sizes:
        return reported, "shared with the host"
    vram, gtt = (size or 0 for size in sizes)
    usable = min(reported, max(vram, gtt))
    note = f"shared with the host: VRAM {vram >> 20} MiB, GTT {gtt >> 20} MiB"
    if usable < reported:
        note += f"; HIP reports {reported >> 20} MiB, which counts both"
    return usable, note


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


__all__ = [
    "KIND",
    "VISIBILITY",
    "WARPS",
    "Hardware",
    "count",
    "describe",
    "described_gpus",
    "enumerate_gpus",
    "usable_memory",
]
