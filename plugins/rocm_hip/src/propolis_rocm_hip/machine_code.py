"""
The files that a library keeps its machine code in, a set for each architecture.

AMD's packages have them in ``<libdir>/rocblas/library`` and ``<libdir>/hipblaslt/library``, or in a
folder there for each architecture; Debian's rocBLAS in ``<libdir>/rocblas/<version>/library``; and
a variable may name another folder.  Their names are no promise: only a product tells whether an
architecture is served.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from typing import NamedTuple


_ARCH: Final = re.compile(r"[_-]([a-z]+[0-9][0-9a-f]*)(?=[.:_-])")


class Files(NamedTuple):
    """
    Where a library looks.

    Attributes:
        folder: beside the library.
        chosen: the variable that names another.
    """

    folder: str
    chosen: str

    def folders(self, library: Path) -> list[Path]:
        """
        Where the library at ``library`` looks, as far as such folders exist.

        Args:
            library: its file, symbolic links resolved.
        """
        chosen = os.environ.get(self.chosen)
        if chosen:
            return [Path(chosen)] if Path(chosen).is_dir() else []
        root = library.parent / self.folder
        found = (root / "library", *root.glob("*/library"), *root.glob("library/gfx*"))
        return sorted(path for path in found if path.is_dir())

    def archs(self, library: Path) -> dict[str, Path]:
        """The architectures that there are files for, with the folder that they are in."""
        found: dict[str, Path] = {}
        for folder in self.folders(library):
            for path in folder.iterdir():
                for arch in _ARCH.findall(path.name):
                    found.setdefault(arch, folder)
        return dict(sorted(found.items()))


ROCBLAS: Final = Files("rocblas", "ROCBLAS_TENSILE_LIBPATH")
HIPBLASLT: Final = Files("hipblaslt", "HIPBLASLT_TENSILE_LIBPATH")

__all__ = ["HIPBLASLT", "ROCBLAS", "Files"]
