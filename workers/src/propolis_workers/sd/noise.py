"""The random numbers of a run: the same on every device, each image by its own seed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis import ops


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis import Device
    from propolis import Tensor

# Each use has counters of its own, so that no two share numbers whatever the sizes.
_APART: Final = 1 << 40
_INITIAL, _IMAGE, _MASKED, _STEPS = range(4)


class Noise:
    """
    Standard normal tensors, f32; each image of a batch draws from a seed of its own.

    So an image has the same noise alone and in a batch.
    """

    def __init__(self, seed: int | Sequence[int], shape: tuple[int, ...], device: Device) -> None:
        """
        Prepare to draw.

        Args:
            seed: of each image; or of the first, and those of the others follow it.
            shape: of all tensors, (batch, channels, height, width).
            device: where they are made.
        """
        self._seeds = range(seed, seed + shape[0]) if isinstance(seed, int) else seed
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
        for n, seed in enumerate(self._seeds):
            ops.normal(out.narrow(0, n, 1), seed=seed, offset=use * _APART)
        return out


__all__ = ["Noise"]
