"""The architectures that the wheel has code objects for."""

from __future__ import annotations

from typing import Final
from typing import NamedTuple


class Arch(NamedTuple):
    """
    An AMD architecture.

    Attributes:
        warp: threads of a warp, as we compile for it.
        isa: its number in the device libraries (``oclc_isa_version``).
    """

    warp: int
    isa: int


ARCHS: Final = {
    "gfx90a": Arch(64, 9010),
    "gfx942": Arch(64, 9402),
    "gfx1030": Arch(32, 10300),
    "gfx1100": Arch(32, 11000),
    "gfx1101": Arch(32, 11001),
    "gfx1102": Arch(32, 11002),
    "gfx1151": Arch(32, 11501),
    "gfx1200": Arch(32, 12000),
    "gfx1201": Arch(32, 12001),
}
