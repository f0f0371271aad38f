"""The architectures that the wheel has code objects for."""

from __future__ import annotations

from typing import Final
from typing import NamedTuple

from propolis_rocm_hip.hardware import WARPS


class Arch(NamedTuple):
    """
    An AMD architecture.

    Attributes:
        warp: threads of a warp, as we compile for it.
        isa: its number in the device libraries (``oclc_isa_version``).
    """

    warp: int
    isa: int


def _isa(name: str) -> int:
    """
    The number of an architecture: major version, and two digits each of minor and stepping.

    >>> _isa("gfx90a"), _isa("gfx1151")
    (9010, 11501)
    """
    major, minor, stepping = name[3:-2], name[-2], name[-1]
    return int(major) * 1000 + int(minor) * 100 + int(stepping, 16)


ARCHS: Final = {name: Arch(warp, _isa(name)) for name, warp in WARPS.items()}
