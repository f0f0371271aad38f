"""
The HIP library: loaded on first use, called through hip-python, launched into by ctypes.

hip-python finds the library (ROCm wheels, ``ROCM_PATH``, ``/opt/rocm``, then the
system's search path); what it finds, ctypes opens again by the same name, which gives
the same library.  Nothing is loaded by importing this module.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from functools import cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import DeviceError
from propolis_rocm_hip.errors import error_for


if TYPE_CHECKING:
    from collections.abc import Callable

# hipGetDevicePropertiesR0600, whose layout hip-python reads, came with it.
OLDEST: Final = (6, 0)
_NEEDS: Final = "ROCm 6.0 or newer"
_INSTALL: Final = (
    f"install {_NEEDS} (the amdgpu driver's packages, or pip's rocm[libraries]), or point "
    f"ROCM_PATH at it; ops run on the CPU until then"
)


@cache
def hip() -> Any:
    """
    The ``rocm.bindings.hip`` module, its library loaded.

    Raises:
        DeviceError: hip-python or the library is missing, or the library is too old; says
            what was looked for.
    """
    bindings = _bindings("hip")
    path = library_path("amdhip64")
    if not bindings.has_symbol("hipInit"):
        msg = f"no libamdhip64: {_reason(path)}; {_INSTALL}"
        raise DeviceError(msg)
    return bindings


def require_modern() -> None:
    """
    Check that devices can be opened with the library.

    Raises:
        DeviceError: it is older than ROCm 6, or cannot be loaded.
    """
    if version() < OLDEST or not hip().has_symbol("hipGetDevicePropertiesR0600"):
        major, minor = version()
        msg = f"{library_path('amdhip64')} is HIP {major}.{minor}: {_INSTALL}"
        raise DeviceError(msg)


def version() -> tuple[int, int]:
    """
    HIP's major and minor version, as the library says it.

    Raises:
        DeviceError: there is no library.
    """
    number = int(call("rocm", "hipRuntimeGetVersion"))
    return number // 10_000_000, number // 100_000 % 100


def _bindings(module: str) -> Any:
    try:
        return importlib.import_module(f"rocm.bindings.{module}")
    except ImportError as exc:
        msg = f"hip-python cannot be imported ({exc}): pip install 'hip-python>=10'"
        raise DeviceError(msg) from exc


def hiprtc() -> Any:
    """
    The ``rocm.bindings.hiprtc`` module, its library loaded.

    Raises:
        DeviceError: hip-python or the library is missing.
    """
    bindings = _bindings("hiprtc")
    if not bindings.has_symbol("hiprtcVersion"):
        msg = f"no libhiprtc: {_reason(library_path('hiprtc'))}; {_INSTALL}"
        raise DeviceError(msg)
    return bindings


def library_path(name: str) -> str:
    """
    What hip-python opens for a ROCm library: a path, or a bare name for the system to find.

    Args:
        name: without prefix and suffix, ``"amdhip64"``.
    """
    try:
        from rocm.bindings.util.paths import get_library_path  # noqa: PLC0415
    except ImportError:
        return f"lib{name}.so"
    return os.fsdecode(get_library_path(name))


def _reason(path: str) -> str:
    """Why a library cannot be opened, in the loader's words."""
    try:
        ctypes.CDLL(path)
    except OSError as exc:
        return str(exc)
    return f"{path} can be opened but is not what it claims to be"


def call(device: str, name: str, *args: Any) -> Any:
    """
    Call a HIP function through hip-python and check its result.

    Args:
        device: for the message: the device's id, or ``"rocm"``.
        name: the function.
        args: its arguments, as hip-python takes them.

    Returns:
        What the function gives beside its error code: nothing, a value or a tuple.

    Raises:
        DeviceError: it failed; of the class that :mod:`propolis_rocm_hip.errors` says.
    """
    try:
        result = getattr(hip(), name)(*args)
    except RuntimeError as exc:  # hip-python, where the library lacks the function
        msg = f"{device}: {name} is not in {library_path('amdhip64')} ({exc}): {_INSTALL}"
        raise DeviceError(msg) from exc
    if result[0]:
        raise failure(device, name, int(result[0]))
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


def failure(device: str, name: str, code: int) -> DeviceError:
    """The error for a code that a HIP function returned."""
    library = _library()
    return error_for(
        device,
        name,
        code,
        _string(library.hipGetErrorName(code)),
        _string(library.hipGetErrorString(code)),
    )


def _string(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace") or "unknown error"


@cache
def _library() -> ctypes.CDLL:
    """The library that hip-python loaded, for the calls where microseconds count."""
    hip()
    library = ctypes.CDLL(library_path("amdhip64"))
    library.hipGetErrorName.restype = ctypes.c_char_p
    library.hipGetErrorString.restype = ctypes.c_char_p
    return library


def native(name: str) -> Callable[..., int]:
    """
    A HIP function by ctypes, without argument conversion: a quarter of hip-python's cost.

    Integers must fit an ``int``; addresses and handles are passed as ctypes objects.
    """
    function: Callable[..., int] = _library()[name]
    return function


def loaded_libraries(stem: str) -> list[str]:
    """Paths of the shared libraries in this process whose name starts with ``stem``."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:  # noqa: PTH123  (procfs)
            paths = {line.split(maxsplit=5)[5].strip() for line in file if stem in line}
    except OSError:
        return []
    return sorted(p for p in paths if os.path.basename(p).startswith(stem))  # noqa: PTH119


__all__ = [
    "OLDEST",
    "call",
    "failure",
    "hip",
    "hiprtc",
    "library_path",
    "loaded_libraries",
    "native",
    "require_modern",
    "version",
]
