"""What an image is drawn from, and whether it can be."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import ArgumentTypeError
from propolis.errors import UsageError
from propolis_workers.arguments import expect_unicode
from propolis_workers.arguments import shown


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis_workers.sd.images import Pixels


def _plain(value: Any) -> object:
    """A number of Python, where it is one of numpy."""
    return value.item() if isinstance(value, np.number) else value


SIGMAS: Final = {
    "normal": {"use_karras_sigmas": False, "use_exponential_sigmas": False},
    "karras": {"use_karras_sigmas": True, "use_exponential_sigmas": False},
    "exponential": {"use_karras_sigmas": False, "use_exponential_sigmas": True},
}
"""Kinds of noise levels, and the settings of a scheduler that give them."""

SPACINGS: Final = ("leading", "trailing", "linspace")
_SIDES: Final = "width and height"
_IMG2IMG_STRENGTH: Final = 0.8
_SEEDS: Final = 1 << 64
MOST_IMAGES: Final = 1024
"""Of one call: a server's, and a page's, are far fewer."""
_TYPES: Final[Mapping[str, tuple[str, tuple[type, ...], Callable[[Any], object] | None]]] = {
    "str": ("a text", (str,), None),
    "int": ("a whole number", (int, np.integer), _plain),
    "float": ("a number", (int, float, np.integer, np.floating), _plain),
    "Pixels": ("a numpy array", (np.ndarray,), None),
}
"""By annotation of a parameter: what it is called, what is taken, what is made of it."""
_ALONE: Final = ": each of several is drawn by a call of its own, batch=N draws N images of one"
_HINTS: Final = {"prompt": f", '' for none{_ALONE}", "negative": _ALONE}
"""By name of a parameter: what to do instead."""


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
            Drawn when None, or -1.
        batch: images to draw together.
        scheduler: a name of ``SCHEDULERS``; the model's own when None.
        sigmas: the noise levels: those of the timesteps (``normal``), ``karras`` or
            ``exponential``; the model's own when None.
        spacing: of timesteps: ``leading``, ``trailing`` or ``linspace``; the
            model's own when None.
        eta: the share of noise that DDIM adds, 0 (none) to 1; no other scheduler has it.
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
    eta: float | None = None
    image: Pixels | None = None
    mask: Pixels | None = None
    strength: float | None = None

    def __post_init__(self) -> None:
        """
        Check types; numpy's numbers become Python's, so that metadata can be written.

        Raises:
            ArgumentTypeError: a parameter is of another type; names it, what was given and what
                can be.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            optional = str(field.type).endswith(" | None")
            if value is None and optional:
                continue
            name, kinds, convert = _TYPES[str(field.type).removesuffix(" | None")]
            if not isinstance(value, kinds) or isinstance(value, bool):
                msg = f"{field.name} is {shown(value)}; supported: {name}"
                msg += " or None" if optional else ""
                raise ArgumentTypeError(msg + _HINTS.get(field.name, ""))
            if convert is not None:
                object.__setattr__(self, field.name, convert(value))

    @property
    def task(self) -> str:
        """``txt2img``, ``img2img`` or ``inpaint``."""
        if self.image is None:
            return "txt2img"
        return "img2img" if self.mask is None else "inpaint"

    @property
    def overrides(self) -> dict[str, object]:
        """
        What the scheduler is told besides the model's own settings.

        Raises:
            UsageError: there is no such kind of noise levels.
        """
        found: dict[str, object] = {}
        if self.sigmas is not None:
            if self.sigmas not in SIGMAS:
                msg = f"there are no sigmas {self.sigmas!r}; supported: {', '.join(SIGMAS)}"
                raise UsageError(msg)
            found |= SIGMAS[self.sigmas]
        if self.spacing is not None:
            found["timestep_spacing"] = self.spacing
        if self.eta is not None:
            found["eta"] = self.eta
        return found


def expect_params(asked: Sequence[object]) -> None:
    """
    Check what somebody gave to be drawn.

    Raises:
        ArgumentTypeError: one is no GenerateParams.
    """
    for params in asked:
        if not isinstance(params, GenerateParams):
            msg = (
                f"params is {shown(params)}; supported: GenerateParams(prompt=...): give one, and "
            )
            msg += "each of several to a call of its own"
            raise ArgumentTypeError(msg)


def alike(one: GenerateParams, other: GenerateParams) -> bool:
    """Whether two, with nothing left open, can be drawn in one batch: their steps are the same."""
    names = ("width", "height", "steps", "guidance", "scheduler", "sigmas", "spacing", "eta")
    same = all(getattr(one, name) == getattr(other, name) for name in names)
    return same and one.task == other.task == "txt2img"


def expect_batch(batch: int) -> None:
    """
    Check how many images are drawn at once, before anything is made for each.

    Raises:
        UsageError: none, or more than any machine has room for.
    """
    if not 1 <= batch <= MOST_IMAGES:
        msg = f"batch is {shown(batch)}; supported: 1 to {MOST_IMAGES} images of a prompt"
        raise UsageError(msg)


def resolved(
    params: GenerateParams,
    *,
    factor: int,
    size: tuple[int, int],
    scheduler: str,
    sides: str = _SIDES,
) -> GenerateParams:
    """
    The same with nothing left open.

    Args:
        params: as given.
        factor: pixels of the image to one of the latents; sizes are multiples of it.
        size: width and height in pixels that the model is made for.
        scheduler: the one that is used.
        sides: what who asks calls width and height, to be told where the image's do not fit.

    Raises:
        UsageError: something cannot be; says what was given and what can.
    """
    expect_unicode("the prompt", params.prompt)
    expect_unicode("the negative prompt", params.negative or "")
    expect_batch(params.batch)
    if not (math.isfinite(params.guidance) and params.guidance >= 0):
        msg = f"guidance is {params.guidance}; it must be finite, 0 or greater (7.5 is usual)"
        raise UsageError(msg)
    if params.negative and params.guidance <= 1:
        msg = f"a negative prompt has no effect at guidance {params.guidance:g}: "
        msg += "leave it out, or give a guidance above 1"
        raise UsageError(msg)
    seed = -1 if params.seed is None else params.seed
    if seed == -1:
        seed = secrets.randbelow(1 << 32)
    if not 0 <= seed <= _SEEDS - params.batch:
        last = "" if params.batch == 1 else f", and those of the {params.batch - 1} images after"
        msg = f"seed {shown(seed)} is not in [0, 2**64){last}, nor -1 for another each time"
        raise UsageError(msg)
    if params.strength is not None and params.image is None:
        msg = "strength is about the image to start from: give one, or leave strength out"
        raise UsageError(msg)
    width, height = _sizes(params, factor, size, sides)
    strength = {"txt2img": None, "img2img": _IMG2IMG_STRENGTH, "inpaint": 1.0}[params.task]
    return replace(
        params,
        width=width,
        height=height,
        seed=seed,
        scheduler=scheduler,
        strength=strength if params.strength is None else params.strength,
    )


def _sizes(
    params: GenerateParams, factor: int, size: tuple[int, int], sides: str
) -> tuple[int, int]:
    """Width and height, which image and mask must have and the model be able to draw."""
    image, mask = params.image, params.mask
    _check_array("image", image, "(height, width, 3)")
    _check_array("mask", mask, "(height, width)")
    if mask is not None and mask.max() == 1:
        msg = "the mask has no more than 1, which is nearly black; supported: 255 where the image "
        msg += "is drawn anew, 0 elsewhere: multiply it by 255"
        raise UsageError(msg)
    if mask is not None and image is None:
        msg = "a mask says which part of an image is drawn anew: give that image too"
        raise UsageError(msg)
    if image is not None and mask is not None and image.shape[:2] != mask.shape[:2]:
        mask_size, image_size = (f"{a.shape[1]}x{a.shape[0]}" for a in (mask, image))
        msg = f"the mask is {mask_size} pixels, the image {image_size}: "
        msg += "make the mask as large as the image"
        raise UsageError(msg)
    given = size
    if image is not None:
        given = image.shape[1], image.shape[0]
    width = given[0] if params.width is None else params.width
    height = given[1] if params.height is None else params.height
    for name, pixels in (("width", width), ("height", height)):
        if pixels >= factor and pixels % factor == 0:
            continue
        whose = "the image's " if image is not None and getattr(params, name) is None else ""
        if pixels < factor:
            wrong, remedy = f"is less than {factor}, the least", f"give a multiple of {factor}"
        else:
            low = pixels // factor * factor
            wrong = f"is not a multiple of {factor}, {low} and {low + factor} are"
            remedy = "give one of these"
        msg = f"{whose}{name} {pixels} {wrong}: {f'give {sides}' if whose else remedy}"
        raise UsageError(msg)
    return width, height


def _check_array(name: str, pixels: Pixels | None, shape: str) -> None:
    if pixels is None:
        return
    fits = len(pixels.shape) == 3 and pixels.shape[2] == 3 if name == "image" else pixels.ndim == 2
    if pixels.dtype != np.uint8 or not fits or not pixels.size:
        msg = f"the {name} is {pixels.dtype} of shape {pixels.shape}; supported: uint8 {shape}"
        raise UsageError(msg)


__all__ = [
    "SIGMAS",
    "SPACINGS",
    "GenerateParams",
    "alike",
    "expect_batch",
    "expect_params",
    "resolved",
]
