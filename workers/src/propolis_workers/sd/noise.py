"""The random numbers of a run: the same on every device, each image by its own seed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis import ops


if TYPE_CHECKING:
    from propolis import Device
    from propolis import Tensor

# Each use has counters of its own, so that no two share numbers whatever the sizes.
_APART: Final = 1 << 40
_INITIAL, _IMAGE, _MASKED, _STEPS = range(4)


class Noise:
    """
    Standard normal tensors, f32; image ``n`` of a batch draws from seed ``seed + n``.

    So an image has the same noise alone and in a batch.
    """

    def __init__(self, seed: int, shape: tuple[int, ...], device: Device) -> None:
        """
        Prepare to draw.

        Args:
            seed: of the first image.
            shape: of all tensors, (batch, channels, height, width).
            device: where they are made.
        """
        self._seed = seed
        self._shape = shape
        self._device = device

    def initial(self) -> Tensor:
        """What the run starts from, or what is added to the image it starts from."""
        return self._draw(_INITIAL)

    def of_image(self) -> Tensor:
        """What chooses the latents of the image among those that the VAE finds likely."""
        return self._draw(_IMAGE)

    def of_masked_image(self) -> Tensor:
        """The same for the image without what the mask covers."""
        return self._draw(_MASKED)

    def of_step(self, i: int) -> Tensor:
        """What step ``i`` adds."""
        return self._draw(_STEPS + i)

    def _draw(self, use: int) -> Tensor:
        out = self._device.empty(self._shape, dtypes.f32)
        for n in range(self._shape[0]):
            ops.normal(out.narrow(0, n, 1), seed=self._seed + n, offset=use * _APART)
        return out


__all__ = ["Noise"]
