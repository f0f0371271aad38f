"""All that the plugin offers a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis_rocm_blas import ops_matmul
from propolis_rocm_blas import ops_quantized
from propolis_rocm_blas._offers import offers


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Device
    from propolis import OpImpl


def implementations(device: Device) -> Iterator[OpImpl]:
    """
    What the plugin offers a device.

    Args:
        device: an AMD GPU, or one that is described.
    """
    return offers(device, (*ops_matmul.OPS, *ops_quantized.OPS))


__all__ = ["implementations"]
