"""What an image is drawn from, and whether it can be."""

from __future__ import annotations

import difflib
import math
import secrets
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis_workers.sd.images import Pixels

SIGMAS: Final = ("karras", "exponential")
SPACINGS: Final = ("leading", "trailing", "linspace")
_IMG2IMG_STRENGTH: Final = 0.8
_SEEDS: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateParams:
    """
    What to draw, and how.

    Attributes:
        prompt: what should be in the image; may be empty.
        negative: what should not; None for the model's own way of having none.
        width: in pixels; the image's, else the model's own, when None.
        height: as ``width``.
        steps: calls of the UNet (with guidance, of two images each).
        guidance: how much the prompt counts; 1 or less turns it off, which halves the work.
        seed: of the first image, in [0, 2**64); the others have the next ones.
            Drawn when None.
        batch: images to draw together.
        scheduler: a name of ``SCHEDULERS``; the model's own when None.
        sigmas: the noise levels, ``karras`` or ``exponential``; the scheduler's when None.
        spacing: of timesteps: ``leading``, ``trailing`` or ``linspace``; the
            scheduler's when None.
        eta: the noise that DDIM adds, 0 (none) to 1.
        image: to start from, u8 (height, width, 3).
        mask: 255 where ``image`` is drawn anew, 0 where it is kept, u8 (height, width).
        strength: the part of the steps that are done on ``image``, in (0, 1]; 0.8, with
            a mask 1, when None.
    """

    prompt: str
    negative: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int = 25
    guidance: float = 7.5
    seed: int | None = None
    batch: int = 1
    scheduler: str | None = None
    sigmas: str | None = None
    spacing: str | None = None
    eta: float = 0.0
    image: Pixels | None = None
    mask: Pixels | None = None
    strength: float | None = None

    @property
    def task(self) -> str:
        """``txt2img``, ``img2img`` or ``inpaint``."""
        if self.image is None:
            return "txt2img"
        return "img2img" if self.mask is None else "inpaint"


def resolved(
    params: GenerateParams,
    *,
    factor: int,
    size: int,
    schedulers: Iterable[str],
    default_scheduler: str,
) -> GenerateParams:
    """
    The same with nothing left open.

    Args:
        params: as given.
        factor: pixels of the image to one of the latents; sizes are multiples of it.
        size: width and height in pixels that the model is made for.
        schedulers: the names that there are.
        default_scheduler: the one that the model names.

    Raises:
        UsageError: something cannot be; says what was given and what can.
    """
    _check_numbers(params)
    known = tuple(schedulers)
    _one_of("scheduler", params.scheduler, known)
    _one_of("sigmas", params.sigmas, SIGMAS)
    _one_of("spacing", params.spacing, SPACINGS)
    if params.negative and params.guidance <= 1:
        msg = f"a negative prompt has no effect at guidance {params.guidance:g}: "
        msg += "leave it out, or give a guidance above 1"
        raise UsageError(msg)
    width, height = _sizes(params, factor, size)
    strength = params.strength
    if strength is None:
        strength = _IMG2IMG_STRENGTH if params.task == "img2img" else 1.0
    if params.image is not None and int(params.steps * strength) < 1:
        msg = f"strength {strength:g} of {params.steps} steps is less than one step: "
        msg += "give a greater strength or more steps"
        raise UsageError(msg)
    return replace(
        params,
        width=width,
        height=height,
        strength=strength,
        seed=secrets.randbelow(1 << 32) if params.seed is None else params.seed,
        scheduler=params.scheduler or default_scheduler,
    )


def _check_numbers(params: GenerateParams) -> None:
    if params.steps < 1:
        msg = f"steps is {params.steps}; at least 1 is needed"
        raise UsageError(msg)
    if params.batch < 1:
        msg = f"batch is {params.batch}; at least 1 is needed"
        raise UsageError(msg)
    if not (math.isfinite(params.guidance) and params.guidance >= 0):
        msg = f"guidance is {params.guidance}; it must be 0 or greater (7.5 is usual)"
        raise UsageError(msg)
    if not 0 <= params.eta <= 1:
        msg = f"eta is {params.eta}; it must be in [0, 1]"
        raise UsageError(msg)
    seed = params.seed
    if seed is not None and not 0 <= seed <= _SEEDS - params.batch:
        last = "" if params.batch == 1 else f", that of the last of {params.batch} images too"
        msg = f"seed {seed} is outside [0, 2**64){last}"
        raise UsageError(msg)
    if params.strength is None:
        return
    if params.image is None:
        msg = "strength is of the image to start from: give one, or leave strength out"
        raise UsageError(msg)
    if not 0 < params.strength <= 1:
        msg = f"strength is {params.strength:g}; it must be above 0 (nothing is drawn) up to 1 "
        msg += "(nothing is kept)"
        raise UsageError(msg)


def _one_of(what: str, given: str | None, known: tuple[str, ...]) -> None:
    if given is None or given in known:
        return
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    msg = f"unknown {what} {given!r}; supported: {', '.join(known)}{hint}"
    raise UsageError(msg)


def _sizes(params: GenerateParams, factor: int, size: int) -> tuple[int, int]:
    """Width and height, which image and mask must have and the model be able to draw."""
    image, mask = params.image, params.mask
    if mask is not None and image is None:
        msg = "a mask says which part of an image is drawn anew: give that image too"
        raise UsageError(msg)
    if image is not None and mask is not None and image.shape[:2] != mask.shape[:2]:
        mask_size, image_size = (f"{a.shape[1]}x{a.shape[0]}" for a in (mask, image))
        msg = f"the mask is {mask_size} pixels, the image {image_size}: "
        msg += "make the mask as large as the image"
        raise UsageError(msg)
    given = size, size
    if image is not None:
        given = image.shape[1], image.shape[0]
    width = given[0] if params.width is None else params.width
    height = given[1] if params.height is None else params.height
    for name, pixels in (("width", width), ("height", height)):
        if pixels >= factor and pixels % factor == 0:
            continue
        low = pixels // factor * factor
        near = f"{low} and {low + factor} are" if low > 0 else f"{factor} is"
        whose = "the image's " if image is not None and getattr(params, name) is None else ""
        msg = f"{whose}{name} {pixels} is not a multiple of {factor}, {near}: "
        msg += "give --width and --height" if whose else "give one of these"
        raise UsageError(msg)
    return width, height


__all__ = ["SIGMAS", "SPACINGS", "GenerateParams", "resolved"]
