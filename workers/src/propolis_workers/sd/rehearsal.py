"""
What a run takes in memory, known before any of it is taken.

A twin of the model on a device that only counts runs the very code that draws.  It has the
weights' shapes and reads none of them: it is there in a moment, and refuses what the model
would refuse.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.storage import POOL_LIMIT


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Device
    from propolis import Tensor
    from propolis_workers.rehearsal import CountingMemory
    from propolis_workers.sd.lora import LoRA
    from propolis_workers.sd.params import GenerateParams
    from propolis_workers.sd.pipeline import StableDiffusion

# What implementations take beside their results, as a share of all tensors: the reference
# pads the inputs of convolutions, and decoding takes half as much again.
_SCRATCH: Final = 1.5

# Steps that schedulers look back on, and one.
_STEPS: Final = 3

_REMEDY: Final = "make smaller images, or fewer at once; --dtype f16 takes half of the memory"


class _Enough(Exception):  # noqa: N818  (no error: the rehearsal is over)
    """All that there is to know is known."""


class Rehearsal:
    """
    A model's twin without memory.

    Attributes:
        model: the twin.
        decoding: bytes that decoding latents of a shape, all at once, takes beside them.
    """

    def __init__(self, model: StableDiffusion, memory: CountingMemory) -> None:
        """
        Begin.

        Args:
            model: on a :class:`~propolis_workers.rehearsal.RehearsalDevice`.
            memory: that device's.
        """
        self.model = model
        self._memory = memory
        self.decoding = lru_cache(maxsize=64)(self._decoding)

    @property
    def weights(self) -> int:
        """Bytes of the weights, and of those that LoRAs changed."""
        return self._memory.live

    def apply_lora(self, lora: LoRA, strength: float) -> None:
        """
        Take on a LoRA, as the model will.

        Raises:
            UsageError: it is for another model.
        """
        self.model.apply_lora(lora, strength)

    def expect_loadable(self, device: Device, params: GenerateParams | None = None) -> None:
        """
        Check that the weights fit, with what drawing takes besides.

        Args:
            device: where they will be.
            params: what will be drawn; None where that is not known yet.

        Raises:
            UsageError: a parameter cannot be.
            OutOfMemoryError: too little memory is free.
        """
        name = self.model.name
        if params is None:
            device.expect_room(self.weights, name, "take a smaller model; --dtype f16 takes half")
            return
        params, _, _ = self.model.planned(params)
        what = f"{name}, drawing {self.model.size_of(params)},"
        self._expect_steps(device, params, what, self.weights)

    def expect_drawable(self, device: Device, params: GenerateParams) -> None:
        """
        Check that the steps fit, the weights being there; parameters have nothing left open.

        Raises:
            OutOfMemoryError: too little memory is free.
        """
        self._expect_steps(device, params, f"drawing {self.model.size_of(params)}", 0)

    def expect_decodable(self, z: Tensor) -> None:
        """
        Check that latents can be decoded at once where they are.

        Raises:
            OutOfMemoryError: too little memory is free.
        """
        width, height = (self.model.components.vae.config.scale * n for n in z.shape[:1:-1])
        what = f"decoding {width}x{height} pixels at once"
        z.device.expect_room(self.decoding(z.shape), what, _REMEDY)

    def _expect_steps(self, device: Device, params: GenerateParams, what: str, before: int) -> None:
        if params.image is not None:
            # The rehearsal holds the image itself, in the size wanted and as floats.
            pixels = 15 * (params.width or 0) * (params.height or 0)
            device.expect_room(before + pixels, what, _REMEDY)
        device.expect_room(before + self.steps(params), what, _REMEDY)

    def steps(self, params: GenerateParams) -> int:
        """Bytes that text and steps take beside the weights; nothing is left open."""
        # Texts are of one length, and what is cut of them is said when they are drawn.
        params = replace(params, prompt="", negative=None)

        def after_step(done: int, clean: Callable[[], Tensor]) -> None:
            del clean
            if done == _STEPS:
                raise _Enough

        def run() -> None:
            with suppress(_Enough):
                self.model.take_steps(params, after_step)

        return self._taken(run)

    def _decoding(self, shape: tuple[int, ...]) -> int:
        z = self.model.device.empty(shape, dtypes.f32)
        return self._taken(lambda: self.model.components.vae.decode(z, tiled="never"))

    def _taken(self, run: Callable[[], object]) -> int:
        """Bytes that something takes at most at once, beside what is there before."""
        before = self._memory.peak = self._memory.live
        run()
        taken = int((self._memory.peak - before) * _SCRATCH)
        # Freed buffers that are kept for tensors of their size.
        return taken + min(taken, POOL_LIMIT)


__all__ = ["Rehearsal"]
