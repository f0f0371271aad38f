"""A little memory of each device, that kernels work in whose blocks share an output."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Tensor
from propolis_rocm_kernels._constants import ACCUMULATOR
from propolis_rocm_kernels._constants import COUNTERS


if TYPE_CHECKING:
    from propolis import Storage
    from propolis_rocm_hip.device import RocmDevice

PARTIALS: Final = 131072
"""Accumulators, behind the counters at its start."""

BYTES: Final = COUNTERS * 4 + PARTIALS * ACCUMULATOR
"""All of it: allocated by the first call on a device that needs it, and kept."""


def scratch(device: RocmDevice) -> int:
    """
    Its address; the same for ever, so that a captured step may use it.

    The device's one stream keeps its users apart, and each leaves the counters at zero.
    """
    return device.keep(_zeros).ptr


def _zeros(device: RocmDevice) -> Storage:
    # Not the tensor: that would keep the device.
    return Tensor.from_numpy(np.zeros(BYTES, np.uint8), device).storage
