"""The HIP libraries that are installed here: the one hip-python opens first, then the others."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_hip import _ffi
from propolis_rocm_hip.system import System


if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME: Final = "libamdhip64.so"


@dataclass(frozen=True, slots=True)
class Library:
    """
    One libamdhip64.

    Attributes:
        path: the file, with symbolic links resolved.
        source: how it is found.
    """

    path: Path
    source: str

    def __str__(self) -> str:
        return f"{self.path} ({self.source})"


def installed() -> list[Library]:
    """All that are found, each file once; the first is the one that hip-python opens."""
    found: dict[Path, Library] = {}
    for source, path in _candidates():
        if path.is_file():
            real = path.resolve()
            found.setdefault(real, Library(real, source))
    return list(found.values())


def _candidates() -> Iterator[tuple[str, Path]]:
    opened = _ffi.library_path("amdhip64")
    if os.sep in opened:
        yield "hip-python's choice", Path(opened)
    else:  # a bare name: the system's loader finds it, and only loading tells where
        for path in _ffi.loaded_libraries("libamdhip64"):
            yield "loaded", Path(path)
    for name in ("ROCM_PATH", "ROCM_HOME"):
        if os.environ.get(name):
            yield name, Path(os.environ[name]) / "lib" / _NAME
    for tree in System().rocm_trees():
        yield str(tree), tree / "lib" / _NAME
    wheels = importlib.util.find_spec("_rocm_sdk_core")
    for folder in (wheels.submodule_search_locations or ()) if wheels else ():
        yield "pip's rocm-sdk", Path(folder) / "lib" / _NAME
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder:
            yield "LD_LIBRARY_PATH", Path(folder) / _NAME
    known = ctypes.util.find_library("amdhip64")
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"):
        if known:
            yield "the system", Path(folder) / known


__all__ = ["Library", "installed"]
