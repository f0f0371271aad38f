"""What the kernel shows of AMD GPUs, with or without ROCm: devices, nodes, permissions."""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

import rocm_bootstrap


if TYPE_CHECKING:
    from collections.abc import Iterator

_AMD: Final = "0x1002"
# PCI classes: display controllers, and processing accelerators (Instinct).
_GPU_CLASSES: Final = ("0x03", "0x12")


@dataclass(frozen=True, slots=True)
class Node:
    """
    One GPU as the compute driver lists it.

    Attributes:
        number: of the topology node.
        arch: what the silicon is, whatever HSA_OVERRIDE_GFX_VERSION says.
    """

    number: int
    arch: str


class System:
    """
    This machine, or a copy of its files for tests.

    Args:
        root: where ``/dev``, ``/sys`` and ``/opt`` are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def has(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return (self.root / path).exists()

    def pci_gpus(self) -> list[str]:
        """PCI addresses of AMD's GPUs, used by the driver or not."""
        found = []
        for device in sorted((self.root / "sys/bus/pci/devices").glob("*")):
            vendor, kind = (_text(device / name) for name in ("vendor", "class"))
            if vendor == _AMD and kind.startswith(_GPU_CLASSES):
                found.append(device.name)
        return found

    def nodes(self) -> list[Node]:
        """The GPUs that the compute driver offers."""
        folder = self.root / "sys/class/kfd/kfd/topology/nodes"
        numbered = sorted((p for p in folder.glob("*") if p.name.isdigit()), key=_number)
        return [node for path in numbered if (node := _node(path)) is not None]

    def device_files(self) -> Iterator[str]:
        """The files a process opens to compute: the driver's, and one for each GPU."""
        if self.has("dev/kfd"):
            yield "dev/kfd"
        for path in sorted((self.root / "dev/dri").glob("renderD*")):
            yield str(path.relative_to(self.root))

    def accessible(self, path: str) -> bool:
        """Whether this process may read and write a file."""
        return os.access(self.root / path, os.R_OK | os.W_OK)

    def group(self, path: str) -> str:
        """The group that a file belongs to: its name, or its number where it has none."""
        number = (self.root / path).stat().st_gid
        try:
            return grp.getgrgid(number).gr_name
        except KeyError:
            return str(number)

    def in_container(self) -> bool:
        """Whether this looks like a container, where groups and devices come from outside."""
        return self.has(".dockerenv") or self.has("run/.containerenv")

    def rocm_trees(self) -> list[Path]:
        """ROCm installations in the usual place."""
        found = [p for p in sorted((self.root / "opt").glob("rocm*")) if (p / "lib").is_dir()]
        return sorted({p.resolve() for p in found})


def _node(path: Path) -> Node | None:
    """The GPU of a topology node; None for a CPU's."""
    properties = dict(
        line.split() for line in _text(path / "properties").splitlines() if len(line.split()) == 2
    )
    version = int(properties.get("gfx_target_version", 0))
    return Node(int(path.name), arch_of_version(version)) if version else None


def arch_of_version(version: int) -> str:
    """
    The architecture of a ``gfx_target_version``, major * 10000 + minor * 100 + stepping.

    >>> arch_of_version(90010)
    'gfx90a'
    >>> arch_of_version(110501)
    'gfx1151'
    """
    try:
        return str(rocm_bootstrap.parse_gfx_target_version(version).name)
    except ValueError:  # newer than the package: the name follows from the number
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def overrides(environ: dict[str, str]) -> dict[str, str]:
    """
    What HSA_OVERRIDE_GFX_VERSION makes of GPUs: architecture by variable.

    >>> overrides({"HSA_OVERRIDE_GFX_VERSION": "10.3.0"})
    {'HSA_OVERRIDE_GFX_VERSION': 'gfx1030'}
    """
    found = {}
    for name, value in sorted(environ.items()):
        if not name.startswith("HSA_OVERRIDE_GFX_VERSION"):
            continue
        try:
            major, minor, stepping = map(int, value.split("."))
        except ValueError:
            found[name] = f"{value!r}, which is no version"
            continue
        found[name] = arch_of_version(major * 10000 + minor * 100 + stepping)
    return found


def _number(path: Path) -> int:
    return int(path.name)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


__all__ = ["Node", "System", "arch_of_version", "overrides"]
