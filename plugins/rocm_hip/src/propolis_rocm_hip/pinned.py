"""Page-locked host memory, which the device's copy engines read and write directly."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING

import numpy as np

from propolis_rocm_hip._release import release


if TYPE_CHECKING:
    from propolis_rocm_hip.context import Context


def pinned_empty(context: Context, nbytes: int) -> np.ndarray:
    """
    Uninitialised page-locked memory as a 1-D uint8 array, freed with its last view.

    Raises:
        OutOfMemoryError: the system does not lock that much.
    """
    ptr = int(context.call("hipHostMalloc", max(nbytes, 1), 0))
    cells = (ctypes.c_uint8 * nbytes).from_address(ptr)
    # The array's base keeps ``cells`` alive, and with it the memory.
    weakref.finalize(cells, release, context, "hipHostFree", ptr)
    return np.ctypeslib.as_array(cells)


__all__ = ["pinned_empty"]
