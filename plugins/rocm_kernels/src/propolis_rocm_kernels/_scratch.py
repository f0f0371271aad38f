"""
Memory of each device that kernels work in: a little for those whose blocks share an output, and as
much as calls have needed so far for those whose rows fit no block.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis_rocm_kernels._constants import ACCUMULATOR
from propolis_rocm_kernels._constants import COUNTERS


if TYPE_CHECKING:
    from propolis import Device

PARTIALS: Final = 131072
"""Accumulators, behind the counters at its start."""

BYTES: Final = COUNTERS * 4 + PARTIALS * ACCUMULATOR
"""All of it: allocated by the first call on a device that needs it, and kept."""

_of: WeakKeyDictionary[Device, Tensor] = WeakKeyDictionary()
_spaces: WeakKeyDictionary[Device, list[Tensor]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def scratch(device: Any) -> int:
    """
    Its address; the same for ever, so that a captured step may use it.

    The device's one stream keeps its users apart, and each leaves the counters at zero.
    """
    tensor = _of.get(device)
    if tensor is None:
        with _lock:
            tensor = _of.get(device)
            if tensor is None:
                zeros = np.zeros(BYTES, np.uint8)
                tensor = _of[device] = Tensor.from_numpy(zeros, device)
    return tensor.storage.ptr


def space_bytes(wanted: int) -> int:
    """
    What :func:`space` allocates for so many bytes: a power of two, so that it seldom grows.

    >>> space_bytes(5_000_000)
    8388608
    """
    return 1 << max(wanted - 1, 1 << 16).bit_length()


def space(device: Any, wanted: int) -> int:
    """
    The address of at least so many bytes, of any content.

    A captured step goes on using what it was given, so memory that has become too small is kept;
    all together is less than twice the largest.
    """
    with _lock:
        held = _spaces.setdefault(device, [])
        if not held or held[-1].nbytes < wanted:
            held.append(device.empty((space_bytes(wanted),), dtypes.u8))
        return held[-1].storage.ptr
