"""A little memory of each device, for kernels whose blocks share an output."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from propolis import Tensor
from propolis_rocm_kernels._constants import ACCUMULATOR
from propolis_rocm_kernels._constants import COUNTERS


if TYPE_CHECKING:
    from propolis import Device

PARTIALS: Final = 131072
"""Accumulators, behind the counters at its start."""

BYTES: Final = COUNTERS * 4 + PARTIALS * ACCUMULATOR
"""All of it: allocated by the first call on a device that needs it, and kept."""

_of: WeakKeyDictionary[Device, Tensor] = WeakKeyDictionary()
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
