"""
A vendor's library beside HIP's: found in the same ROCm tree, called through ctypes.

Nothing is loaded by importing this module; a library is loaded when the first of its
functions is wanted, and a function is looked up when it is wanted itself: what a release lacks
costs those alone who call it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import DeviceError
from propolis_rocm_hip import _ffi


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping
    from collections.abc import Sequence

LETTERS: Final[Mapping[str, Any]] = {
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "?": ctypes.c_bool,
    "P": ctypes.c_void_p,
    "v": None,
}
"""
What the letters of a signature stand for; the result's comes first.

Enums are ``i``, ``size_t`` is ``Q``, handles and pointers of any kind are ``P``.
"""

_BRINGS: Final = "install what brings"


def find(name: str, sonames: Sequence[str], remedy: str) -> Path:
    """
    The file of a library, in the tree that HIP's came from.

    Args:
        name: without prefix and suffix, ``"rocblas"``.
        sonames: the file names that are supported, the best first.
        remedy: what to install where there is none.

    Raises:
        DeviceError: there is no HIP, or none of the names lies in its tree; says which folders
            were looked into.
    """
    folders = list(dict.fromkeys(_folders(name)))
    for soname in sonames:
        for folder in folders:
            if (folder / soname).is_file():
                return (folder / soname).resolve()
    looked = " or ".join(map(str, folders)) or "a tree that cannot be told"
    msg = f"no {' or '.join(sonames)} beside HIP's library, in {looked}: {remedy}"
    raise DeviceError(msg)


def parted(text: str, remedy: str) -> tuple[str, str]:
    """
    What is wrong and what to do, of an error's text; ``remedy`` where that says nothing of it.

    >>> parted("no librocblas.so.4: install rocBLAS", "install rocBLAS")
    ('no librocblas.so.4', 'install rocBLAS')
    >>> parted("it cannot be loaded: libz.so; install what brings libz.so", "install rocBLAS")
    ('it cannot be loaded: libz.so', 'install what brings libz.so')
    """
    at = max(text.rfind(f"; {_BRINGS}"), text.rfind(f": {remedy}"), text.rfind(f"; {remedy}"))
    return (text[:at], text[at + 2 :]) if at >= 0 else (text, remedy)


def _folders(name: str) -> Iterator[Path]:
    """Where HIP's own library lies, and where pip's wheels keep the others."""
    _ffi.hip()
    for path in _ffi.loaded_libraries("libamdhip64"):
        yield Path(path).parent
    # A link that names the tree may lie elsewhere than the file: /opt/rocm/lib of a distribution.
    for path in (_ffi.library_path("amdhip64"), _ffi.library_path(name)):
        if os.sep in path:
            yield Path(path).parent


class Library:
    """
    A library's functions by name.

    Args:
        path: its file.
        signatures: of each function: letters of :data:`LETTERS`, the result's first.
        newest: what to do where a function is missing.
    """

    def __init__(self, path: Path, signatures: Mapping[str, str], newest: str) -> None:
        self.path = path
        self._signatures = signatures
        self._newest = newest
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as exc:
            lacking, _, rest = str(exc).partition(": ")
            other = "cannot open shared object file" in rest and Path(lacking).name != path.name
            remedy = f"{_BRINGS} {lacking}, of the same ROCm" if other else newest
            msg = f"{path} cannot be loaded: {exc}; {remedy}"
            raise DeviceError(msg) from exc

    def has(self, name: str) -> bool:
        """Whether this release has the function."""
        return hasattr(self._library, name)

    def function(self, name: str) -> Callable[..., Any]:
        """
        One of them; numbers and addresses are given as Python's integers and floats.

        Raises:
            DeviceError: this release lacks it.
            KeyError: its signature is not declared.
        """
        result, *arguments = (LETTERS[letter] for letter in self._signatures[name])
        try:
            function = self._library[name]
        except AttributeError as exc:
            msg = f"{self.path} has no {name}: {self._newest}"
            raise DeviceError(msg) from exc
        function.restype, function.argtypes = result, arguments
        made: Callable[..., Any] = function
        return made


__all__ = ["LETTERS", "Library", "find"]
