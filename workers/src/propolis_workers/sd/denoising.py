"""The loop from noise to latents: inpainting, and a stop where numbers run away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from propolis import Tensor
from propolis import ops
from propolis_workers.sd.latents import NotFiniteError
from propolis_workers.sd.latents import is_finite
from propolis_workers.sd.predicting import Predictor
from propolis_workers.suspects import suspects_without_drift


if TYPE_CHECKING:
    from propolis_workers.sd.noise import Noise
    from propolis_workers.sd.predicting import Guide
    from propolis_workers.sd.schedulers import Plan
    from propolis_workers.sd.unet import UNet2DCondition

AfterStep = Callable[[int, Callable[[], Tensor]], None]
"""Called with the steps done, and with what gives the clean latents predicted at the last."""


@dataclass(frozen=True, slots=True)
class Known:
    """
    The part of an image that stays, for UNets that take latents alone.

    Attributes:
        mask: integers, (b, 1, h, w), not 0 where it is drawn anew.
        original: the image's latents, (b, c, h, w), f32.
        noise: what is added to them, the same at all steps.
    """

    mask: Tensor
    original: Tensor
    noise: Tensor

    def kept(self, plan: Plan, i: int, latents: Tensor) -> Tensor:
        """The latents before step ``i`` of the plan, with those of the image where it stays."""
        return ops.where(self.mask, latents, plan.add_noise(self.original, self.noise, i))


def denoise(
    unet: UNet2DCondition,
    plan: Plan,
    latents: Tensor,
    guide: Guide,
    noise: Noise,
    *,
    known: Known | None = None,
    beside: Tensor | None = None,
    after_step: AfterStep | None = None,
) -> Tensor:
    """
    Take all steps of a plan.

    Args:
        unet: the network.
        plan: the steps, none taken yet.
        latents: (b, c, h, w), f32, at the noise of the first step.
        guide: the text.
        noise: what steps draw from.
        known: what stays of an image.
        beside: (b, 1 + c, h, w): mask and masked image, for UNets that take them.
        after_step: called after each step.

    Returns:
        (b, c, h, w), f32.

    Raises:
        NotFiniteError: the latents are no longer finite; names the step.
    """
    with closing(Predictor(unet, guide, len(plan))) as predict:
        for i, timestep in enumerate(plan.timesteps):
            x = plan.scale_input(latents, i)
            if beside is not None:
                x = ops.cat([x, beside], 1)
            output = predict(x, float(timestep))
            fresh = noise.of_step(i) if plan.needs_noise(i) else None
            before, latents = latents, plan.step(i, output, latents, fresh)
            if known is not None:
                latents = known.kept(plan, i + 1, latents)
            if not is_finite(latents):
                _fail(guide, output, i, plan)
            if after_step is not None:
                after_step(i + 1, partial(plan.clean, i, output, before))
    return latents


def _fail(guide: Guide, output: Tensor, i: int, plan: Plan) -> None:
    who = "the scheduler's step" if is_finite(output) else "the UNet"
    pooled = guide.added.text_embeds if guide.added is not None else None
    if not all(is_finite(text) for text in (guide.context, pooled) if text is not None):
        who = "the text encoder"
    msg = (
        f"step {i + 1} of {len(plan)} (timestep {float(plan.timesteps[i]):g}): {who} gave values "
        f"that are not finite (NaN or infinity), so there is no image: the weights are damaged, "
        f"a LoRA is too strong, f16 overflows (--dtype f32 does not), or an op is wrong: "
        f"{suspects_without_drift(output.device)}"
    )
    raise NotFiniteError(msg)


__all__ = ["AfterStep", "Known", "denoise"]
