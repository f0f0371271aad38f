"""
The files that rocBLAS keeps its machine code in, a set for each architecture.

AMD's packages have them in ``<libdir>/rocblas/library``, Debian's in
``<libdir>/rocblas/<version>/library``, and a variable may name another folder.  Their names are no
promise: only a product tells whether an architecture is served.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final


CHOSEN: Final = "ROCBLAS_TENSILE_LIBPATH"

_ARCH: Final = re.compile(r"[_-]([a-z]+[0-9][0-9a-f]*)(?=[.:_-])")


def folders(library: Path) -> list[Path]:
    """
    Where the library at ``library`` looks, as far as such folders exist.

    Args:
        library: its file, symbolic links resolved.
    """
    chosen = os.environ.get(CHOSEN)
    if chosen:
        return [Path(chosen)] if Path(chosen).is_dir() else []
    root = library.parent / "rocblas"
    return sorted(path for path in (root / "library", *root.glob("*/library")) if path.is_dir())


def archs(library: Path) -> dict[str, Path]:
    """The architectures that there are files for, with the folder that they are in."""
    found: dict[str, Path] = {}
    for folder in folders(library):
        for path in folder.iterdir():
            for arch in _ARCH.findall(path.name):
                found.setdefault(arch, folder)
    return dict(sorted(found.items()))


__all__ = ["CHOSEN", "archs", "folders"]
