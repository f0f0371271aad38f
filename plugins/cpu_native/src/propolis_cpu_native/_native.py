"""
The compiled kernels: which of the levels of instructions this CPU has, and the module for it.

Importing this file loads nothing; :func:`native` does.
"""

from __future__ import annotations

import importlib
import os
import platform
from contextlib import suppress
from enum import IntEnum
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.errors import ConfigError
from propolis.errors import OpError
from propolis.errors import OutOfMemoryError
from propolis.errors import PluginError


if TYPE_CHECKING:
    from types import ModuleType

    from propolis import DType

LEVEL: Final = "CPU_NATIVE_LEVEL"
"""The environment variable that names a level to take instead of the best."""


class Way(IntEnum):
    """How a product is computed: as the kernels number it."""

    EXACT = 0
    TILES = 1
    MATRIX = 2


KINDS: Final[dict[DType, int]] = {dtypes.f32: 0, dtypes.f16: 1, dtypes.bf16: 2}
"""The dtypes that the kernels compute with, and their numbers there."""

FLOATS: Final = frozenset(KINDS)
"""These dtypes alone."""

# From the best; of each what the kernel must say of the CPU (/proc/cpuinfo names features so).
_X86: Final = {
    "x86_64_v4_bf16": {
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512_vnni"),
        "avx512_bf16",
    },
    "x86_64_v4_vnni": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512_vnni"},
    "x86_64_v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
    "x86_64_v3_vnni": {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm", "avx_vnni"},
    "x86_64_v3": {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"},
    "x86_64_v2": {"ssse3", "sse4_1", "sse4_2", "popcnt"},
}
_ARM: Final = {
    "arm64_i8mm": {"asimddp", "i8mm"},
    "arm64_dotprod": {"asimddp"},
    "arm64": {"asimd"},
}


def levels() -> dict[str, set[str]]:
    """The levels that there are kernels for on this machine's architecture, the best first."""
    return {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {})


def level() -> str:
    """
    The best level that this CPU has, or the one that the environment names.

    Raises:
        PluginError: it has none.
        ConfigError: there is no level of that name here.
    """
    known, wanted = levels(), os.environ.get(LEVEL)
    if wanted:
        if wanted not in known:
            msg = f"{LEVEL}={wanted}: there is no such level; here there are {', '.join(known)}"
            raise ConfigError(msg)
        return wanted
    found = _features()
    for name, needed in known.items():
        if needed <= found:
            return name
    msg = (
        f"no kernels for this CPU ({platform.machine()}): there are some for x86-64 from "
        f"x86-64-v2 on and for 64-bit Arm; without this plugin cpu_ref serves everything"
    )
    raise PluginError(msg)


@cache
def _features() -> frozenset[str]:
    """What the operating system says that programs may use of this CPU."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  (procfs)
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in {"flags", "Features"}:
                return frozenset(value.split())
    return frozenset()


@cache
def native() -> ModuleType:
    """
    The kernels for this CPU.

    Raises:
        PluginError: there are none, or they do not load.
    """
    name = level()
    try:
        module = importlib.import_module(f"propolis_cpu_native._{name}")
    except ImportError as exc:
        msg = (
            f"the kernels for {name} do not load ({exc}): install propolis-cpu-native anew, as a "
            f"wheel or with a C++20 compiler"
        )
        raise PluginError(msg) from exc
    module.raise_as(OpError)
    return module


@cache
def matrix_instructions() -> str:
    """What multiplies matrices of bf16 here, "AMX" or "AVX512_BF16"; empty: nothing does."""
    try:
        return str(native().matrix_instructions())
    except PluginError:
        return ""


_LINE: Final = 64


def _from_line(memory: np.ndarray) -> np.ndarray:
    """The same from a multiple of 64 on."""
    return memory[-memory.ctypes.data % _LINE :]


def aligned(nbytes: int) -> np.ndarray:
    """
    Bytes that begin at a multiple of 64, as vectors like them.

    Raises:
        OutOfMemoryError: the host, or what this process may have of it, has less.
    """
    try:
        return _from_line(np.empty(nbytes + _LINE, np.uint8))[:nbytes]
    except MemoryError as exc:
        msg = f"cpu: {nbytes} bytes are more than the free host memory"
        raise OutOfMemoryError(msg) from exc


class _Pieces:
    """
    Memory that weights lie in side by side.

    A step of decoding reads all of them.  Numpy asks for large pages where an array has 4 MB; in
    pages of 4 KB, which smaller arrays have, reading waits for addresses.
    """

    SIZE: Final = 16 << 20

    def __init__(self) -> None:
        self._lock = Lock()
        self._free = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> np.ndarray:
        """Bytes from a multiple of 64 on; a piece lives as long as what was taken of it."""
        if nbytes >= self.SIZE:
            return aligned(nbytes)
        with self._lock:
            free = _from_line(self._free)
            if nbytes > free.size:
                free = aligned(self.SIZE)
            self._free = free[nbytes:]
        return free[:nbytes]


_pieces: Final = _Pieces()


def lasting(nbytes: int) -> np.ndarray:
    """Such bytes for a weight, which stays, beside those of others."""
    return _pieces.take(nbytes)


__all__ = [
    "FLOATS",
    "KINDS",
    "LEVEL",
    "Way",
    "aligned",
    "lasting",
    "level",
    "levels",
    "matrix_instructions",
    "native",
]
