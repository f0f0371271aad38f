"""
Looks at an image's pixels and says which of a prompt's claims hold.

The background is the border's median colour; what differs from it is split into connected
parts; each part's colour is the nearest named one, its shape the template that overlaps best.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING
from typing import Final

import numpy as np
from captions import Claims
from captions import ThingClaim
from captions import understand
from scenes import Thing
from scenes import place_of
from scenes import relation_of
from shapes import BACKGROUNDS
from shapes import COLOURS
from shapes import SHAPES
from shapes import SIZE
from shapes import coverage


if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

FOREGROUND: Final = 40.0  # levels from the background at which a pixel is part of a thing
SMALLEST: Final = 20  # pixels; smaller parts are specks
FAITHFUL: Final = 0.70  # overlap (intersection over union) under which a part has no shape
COLOUR_RANGE: Final = 75.0  # levels from every named colour at which a part has none


@dataclass(frozen=True)
class Seen:
    """What the pixels show: the background's name, the things, and how many specks lie about."""

    background: str | None
    things: tuple[Thing, ...]
    specks: int


@dataclass(frozen=True)
class Verdict:
    """Which claims hold; a claim that is not made holds."""

    count: bool
    colour: bool
    shape: bool
    size: bool
    position: bool
    background: bool

    @property
    def obeyed(self) -> bool:
        """Whether the image shows what the prompt says: count, colours, shapes, position."""
        return self.count and self.colour and self.shape and self.position

    @property
    def everything(self) -> bool:
        """Whether sizes and background hold too."""
        return self.obeyed and self.size and self.background


def _nearest(colour: NDArray[np.float32], names: dict[str, tuple[int, int, int]]) -> str | None:
    distances = np.linalg.norm(np.float32(list(names.values())) - colour, axis=1)
    best = int(distances.argmin())
    return list(names)[best] if distances[best] <= COLOUR_RANGE else None


def _parts(mask: Mask) -> list[Mask]:
    """The 8-connected parts, largest first: each pixel takes its neighbours' greatest label."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(labels, 1)
        spread = np.maximum.reduce(
            [
                padded[1 + dy : SIZE + 1 + dy, 1 + dx : SIZE + 1 + dx]
                for dy in (-1, 0, 1)
                for dx in (-1, 0, 1)
            ]
        )
        spread[~mask] = 0
        if np.array_equal(spread, labels):
            break
        labels = spread
    names, counts = np.unique(labels[mask], return_counts=True)
    return [labels == name for name in names[np.argsort(-counts)]]


def _overlap(alpha: NDArray[np.float32], shape: str, x: float, y: float, radius: float) -> float:
    template, rows, columns = coverage(shape, x, y, radius)
    both = float(np.minimum(alpha[rows, columns], template).sum())
    return both / (float(alpha.sum()) + float(template.sum()) - both)


def _unit_box(shape: str) -> tuple[float, float, float, float]:
    alpha, rows, columns = coverage(shape, 32, 32, 16)
    return _box(alpha, rows.start, columns.start, 16.0)


def _box(
    alpha: NDArray[np.float32], top: int, left: int, unit: float
) -> tuple[float, float, float, float]:
    """Centre and half extents of a soft mask, relative to (32, 32), in units."""
    across, down = alpha.max(axis=0), alpha.max(axis=1)
    c, r = np.flatnonzero(across > 0.5), np.flatnonzero(down > 0.5)
    x0, x1 = left + c[0] - 32, left + c[-1] + 1 - 32
    y0, y1 = top + r[0] - 32, top + r[-1] + 1 - 32
    return (
        (x0 + x1) / 2 / unit,
        (y0 + y1) / 2 / unit,
        (x1 - x0) / 2 / unit,
        (y1 - y0) / 2 / unit,
    )


_UNIT_BOXES: Final = {shape: _unit_box(shape) for shape in SHAPES}


def _fit(alpha: NDArray[np.float32]) -> tuple[str | None, float, float, float]:
    """The best overlapping shape (None under FAITHFUL), its centre and radius in pixels."""
    x, y, wide, high = _box(alpha, 0, 0, 1.0)
    guesses = []
    for shape, (unit_x, unit_y, unit_wide, unit_high) in _UNIT_BOXES.items():
        radius = (wide + high) / (unit_wide + unit_high)
        left, top = 32 + x - unit_x * radius, 32 + y - unit_y * radius
        guesses.append((_overlap(alpha, shape, left, top, radius), shape, left, top, radius))
    guesses.sort(reverse=True)
    best = guesses[0]
    for _, shape, left, top, guess in guesses[:3]:
        for radius in (guess - 0.6, guess, guess + 0.6):
            for dx in (-0.5, 0.0, 0.5):
                for dy in (-0.5, 0.0, 0.5):
                    score = _overlap(alpha, shape, left + dx, top + dy, radius)
                    best = max(best, (score, shape, left + dx, top + dy, radius))
    return (best[1] if best[0] >= FAITHFUL else None, *best[2:])


def look(image: NDArray[np.uint8]) -> Seen:
    """
    What an image shows.

    Args:
        image: (64, 64, 3) or an integer multiple of it, 0..255.

    Raises:
        ValueError: the image has another shape.
    """
    side = image.shape[0]
    if image.shape != (side, side, 3) or side % SIZE:
        msg = f"scenes are squares of {SIZE} pixels or a multiple, the image is {image.shape}"
        raise ValueError(msg)
    block = side // SIZE
    pixels = image.reshape(SIZE, block, SIZE, block, 3).mean(axis=(1, 3), dtype=np.float32)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    ground = np.median(border, axis=0)
    mask = np.linalg.norm(pixels - ground, axis=2) > FOREGROUND
    parts = _parts(mask) if mask.any() else []
    things = [_thing(pixels, ground, part) for part in parts if part.sum() >= SMALLEST]
    specks = sum(1 for part in parts if 4 <= part.sum() < SMALLEST)
    return Seen(_nearest(ground, BACKGROUNDS), tuple(things), specks)


def _thing(pixels: NDArray[np.float32], ground: NDArray[np.float32], part: Mask) -> Thing:
    inside = np.pad(part, 1)
    core = part & inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    colour = np.median(pixels[core if core.sum() >= 8 else part], axis=0)
    towards = colour - ground
    alpha = np.clip((pixels - ground) @ towards / max(float(towards @ towards), 1.0), 0, 1)
    grown = inside[:-2, 1:-1] | inside[2:, 1:-1] | inside[1:-1, :-2] | inside[1:-1, 2:] | part
    shape, x, y, radius = _fit(np.where(grown, alpha, 0).astype(np.float32))
    return Thing(_nearest(colour, COLOURS) or "", shape or "", x, y, radius)


def judge(claims: Claims, image: NDArray[np.uint8]) -> Verdict:
    """Which of the claims an image obeys, things taken in the order that suits them best."""
    seen = look(image)
    background = claims.background in {None, seen.background}
    if len(seen.things) != len(claims.things) or seen.specks:
        return Verdict(False, False, False, False, False, background)
    verdicts = [
        Verdict(
            True,
            all(c.colour in {None, t.colour} for c, t in zip(claims.things, order, strict=True)),
            all(c.shape in {None, t.shape} for c, t in zip(claims.things, order, strict=True)),
            all(c.size in {None, t.size} for c, t in zip(claims.things, order, strict=True)),
            _in_position(claims, order),
            background,
        )
        for order in permutations(seen.things)
    ]
    return max(verdicts, key=lambda v: (v.obeyed, v.colour + v.shape + v.size + v.position))


def _in_position(claims: Claims, things: tuple[Thing, ...]) -> bool:
    def placed(claim: ThingClaim, thing: Thing) -> bool:
        return claim.place in {None, place_of(thing.x, thing.y, slack=3.0)}

    if not all(placed(c, t) for c, t in zip(claims.things, things, strict=True)):
        return False
    return claims.relation is None or claims.relation == relation_of(*things)


def check(prompt: str, image: NDArray[np.uint8]) -> Verdict:
    """
    Which claims of a prompt an image obeys.

    Raises:
        ValueError: the prompt is not in the captions' language, or the image is no square.
    """
    return judge(understand(prompt), image)
