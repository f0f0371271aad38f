"""Scenes of one or two coloured shapes: what may be in them, which are held out, drawing."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

import numpy as np
from shapes import BACKGROUNDS
from shapes import COLOURS
from shapes import SHAPES
from shapes import SIZE
from shapes import coverage


if TYPE_CHECKING:
    from numpy.typing import NDArray

RADII: Final = {"small": (6.5, 8.0), "large": (12.0, 14.0)}
# A place is a cell of a 3 x 3 grid: the ranges of centres that are drawn for it.
LOW, MIDDLE, HIGH = (0.0, 21.0), (28.0, 36.0), (43.0, 64.0)
PLACES: Final = {
    "left": (LOW, MIDDLE),
    "right": (HIGH, MIDDLE),
    "top": (MIDDLE, LOW),
    "bottom": (MIDDLE, HIGH),
    "centre": (MIDDLE, MIDDLE),
    "top left": (LOW, LOW),
    "top right": (HIGH, LOW),
    "bottom left": (LOW, HIGH),
    "bottom right": (HIGH, HIGH),
}
RELATIONS: Final = ("left of", "right of", "above", "below")

# Of the 80 pairs of colour and shape, these never appear in training.
HELD_OUT_PAIRS: Final = frozenset(
    {
        ("red", "star"),
        ("green", "heart"),
        ("blue", "ring"),
        ("yellow", "triangle"),
        ("purple", "circle"),
        ("orange", "cross"),
        ("cyan", "square"),
        ("pink", "diamond"),
    }
)
PLAIN_BACKGROUNDS: Final = ("white", "black", "grey")  # half of all scenes have one of these
MARGIN: Final = 1.0  # pixels between a shape's box and the image's edge
GAP: Final = 3.0  # pixels between two boxes


@dataclass(frozen=True)
class Thing:
    """A shape on the image; x, y and radius in pixels."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float

    @property
    def size(self) -> str:
        """`small` or `large`."""
        return "small" if self.radius < 10 else "large"


@dataclass(frozen=True)
class Scene:
    """One or two things on a background of one colour."""

    things: tuple[Thing, ...]
    background: str

    @property
    def held_out(self) -> bool:
        """Whether training must never see it (see HELD_OUT_PAIRS; one in eight pairs of things)."""
        kinds = [(t.colour, t.shape) for t in self.things]
        if any(kind in HELD_OUT_PAIRS for kind in kinds):
            return True
        return len(kinds) == 2 and held_out_couple(*kinds)


def held_out_couple(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two (colour, shape) pairs, in either order, are never drawn together in training."""
    return zlib.crc32(repr(sorted((one, other))).encode()) % 8 == 0


def relation_of(one: Thing, other: Thing) -> str:
    """Where `one` is seen from `other`."""
    dx, dy = one.x - other.x, one.y - other.y
    if abs(dx) > abs(dy):
        return "left of" if dx < 0 else "right of"
    return "above" if dy < 0 else "below"


def place_of(x: float, y: float, slack: float = 0.0) -> str | None:
    """The cell of the 3 x 3 grid that a centre lies in, if any; cells grow by `slack` pixels."""
    for place, (columns, rows) in PLACES.items():
        if (
            columns[0] - slack <= x <= columns[1] + slack
            and rows[0] - slack <= y <= rows[1] + slack
        ):
            return place
    return None


def _kind(rng: np.random.Generator, background: str) -> tuple[str, str]:
    colours = [c for c in COLOURS if c != background]
    return colours[rng.integers(len(colours))], list(SHAPES)[rng.integers(len(SHAPES))]


def _within(rng: np.random.Generator, low: float, high: float, radius: float) -> float:
    edge = radius + MARGIN
    return float(rng.uniform(max(low, edge), min(high, SIZE - edge)))


def random_scene(rng: np.random.Generator) -> Scene:
    """A scene, held out or not: one thing in two scenes of five, two things else."""
    names = PLAIN_BACKGROUNDS if rng.random() < 0.5 else tuple(BACKGROUNDS)
    background = names[rng.integers(len(names))]
    count = 1 if rng.random() < 0.4 else 2
    kinds = [_kind(rng, background) for _ in range(count)]
    radii = [float(rng.uniform(*RADII["small" if rng.random() < 0.5 else "large"])) for _ in kinds]
    if count == 1:
        places = list(PLACES.values())
        everywhere = ((0.0, float(SIZE)), (0.0, float(SIZE)))
        columns, rows = places[rng.integers(9)] if rng.random() < 0.7 else everywhere
        centres = [(_within(rng, *columns, radii[0]), _within(rng, *rows, radii[0]))]
    else:
        centres = _two_centres(rng, radii)
    things = tuple(
        Thing(colour, shape, x, y, radius)
        for (colour, shape), (x, y), radius in zip(kinds, centres, radii, strict=True)
    )
    return Scene(things, background)


def _two_centres(rng: np.random.Generator, radii: list[float]) -> list[tuple[float, float]]:
    """The first beside or above the second, aligned to within 9 pixels; either may come first."""
    r0, r1 = radii
    first = _within(rng, 0, SIZE - MARGIN - GAP - 2 * r1 - r0, r0)
    second = _within(rng, first + r0 + GAP + r1, SIZE, r1)
    level = _within(rng, 12, SIZE - 12, r0)
    other_level = _within(rng, level - 9, level + 9, r1)
    ends = [(first, level), (second, other_level)]
    if rng.random() < 0.5:  # mirrored: the first is right of (or below) the second
        ends = [(SIZE - a, b) for a, b in ends]
    return ends if rng.random() < 0.5 else [(b, a) for a, b in ends]


def training_scene(rng: np.random.Generator) -> Scene:
    """A scene that is not held out."""
    while (scene := random_scene(rng)).held_out:
        pass
    return scene


def held_out_scene(rng: np.random.Generator) -> Scene:
    """A scene that training never sees."""
    while not (scene := random_scene(rng)).held_out:
        pass
    return scene


def draw(scene: Scene) -> NDArray[np.uint8]:
    """The image of a scene, (64, 64, 3)."""
    image = np.empty((SIZE, SIZE, 3), np.float32)
    image[:] = BACKGROUNDS[scene.background]
    for thing in scene.things:
        alpha, rows, columns = coverage(thing.shape, thing.x, thing.y, thing.radius)
        region = image[rows, columns]
        region += alpha[..., None] * (np.float32(COLOURS[thing.colour]) - region)
    return np.rint(image).astype(np.uint8)
