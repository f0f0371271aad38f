"""How far products may be off where cpu_native rounds activations (docs/cpu-native.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from numpy.typing import NDArray


def most_off(x: NDArray[np.float32], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    What (rows, width) by (outputs, width) may be off, (rows, outputs).

    Half a step of each activation times its weight: of 8 bits, 32 with a scale, and of 16 where
    one of these is above ten times the mean of its row.
    """
    blocks = np.abs(x.astype(np.float64)).reshape(len(x), -1, 32)
    top = blocks.max(-1, keepdims=True)
    fine = top > 10 * blocks.mean((1, 2), keepdims=True)
    half = np.broadcast_to(np.where(fine, top / 32639, top / 127) / 2, blocks.shape)
    return half.reshape(len(x), -1) @ np.abs(weights).T
