"""
The colours and shapes of the scenes, drawn with anti-aliased edges.

Images are (height, width, 3) arrays of 0..255 with y pointing down.  A shape is the set
where a function of unit coordinates is true: x and y run from -1 to 1 across its box.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Inside = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.bool_]]

SIZE: Final = 64  # pixels of an image's side
SUBSAMPLES: Final = 4  # a pixel's coverage is the mean of 4 x 4 points

# Far apart in RGB: the two nearest, orange and yellow, differ by 79 levels.
COLOURS: Final = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 215, 50),
    "purple": (140, 60, 180),
    "orange": (245, 140, 30),
    "cyan": (60, 205, 215),
    "pink": (250, 150, 190),
    "white": (250, 250, 250),
    "black": (15, 15, 15),
}
BACKGROUNDS: Final = {**COLOURS, "grey": (128, 128, 128)}


def _star(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Five points: fold the angle into half a point, then test one straight edge."""
    y = y - 0.05
    fold = np.pi / 5
    angle = np.abs((np.arctan2(x, -y) + fold) % (2 * fold) - fold)
    radius = np.hypot(x, y) / 1.05
    across, along = radius * np.sin(angle), radius * np.cos(angle)
    inner = 0.46
    notch_across, notch_along = inner * np.sin(fold), inner * np.cos(fold)
    inside: NDArray[np.bool_] = (1 - along) * notch_across >= across * (1 - notch_along)
    return inside


def _heart(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
    """The sextic curve (u^2 + v^2 - 1)^3 = u^2 v^3, stretched to the unit box."""
    u, v = 1.14 * x, 0.12 - 1.12 * y
    inside: NDArray[np.bool_] = (u * u + v * v - 1) ** 3 <= u * u * v**3
    return inside


SHAPES: Final[dict[str, Inside]] = {
    "circle": lambda x, y: x * x + y * y <= 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) <= 0.84,
    "triangle": lambda x, y: (y <= 0.78) & (np.abs(x) <= (y + 0.92) * 0.58),
    "diamond": lambda x, y: np.abs(x) * 1.15 + np.abs(y) <= 1.0,
    "star": _star,
    "ring": lambda x, y: (x * x + y * y <= 1) & (x * x + y * y >= 0.3),
    "cross": lambda x, y: (
        (np.minimum(np.abs(x), np.abs(y)) <= 0.32) & (np.maximum(np.abs(x), np.abs(y)) <= 0.95)
    ),
    "heart": _heart,
}


def coverage(
    shape: str, x: float, y: float, radius: float, size: int = SIZE
) -> tuple[NDArray[np.float32], slice, slice]:
    """
    How much of each pixel a shape covers.

    Args:
        shape: a key of SHAPES.
        x: the centre of its box, in pixels from the left edge.
        y: likewise from the top edge.
        radius: half the side of its box, in pixels.
        size: the image's side.

    Returns:
        The fractions, 0..1, of the rows and columns that the two slices name.
    """
    left, right = max(int(x - radius) - 1, 0), min(int(x + radius) + 2, size)
    top, bottom = max(int(y - radius) - 1, 0), min(int(y + radius) + 2, size)
    offset = (np.arange(SUBSAMPLES, dtype=np.float32) + 0.5) / SUBSAMPLES
    columns = (np.arange(left, right, dtype=np.float32)[:, None] + offset).reshape(1, -1)
    rows = (np.arange(top, bottom, dtype=np.float32)[:, None] + offset).reshape(-1, 1)
    inside = SHAPES[shape]((columns - np.float32(x)) / radius, (rows - np.float32(y)) / radius)
    points = np.broadcast_to(inside, (rows.size, columns.size))
    blocks = points.reshape(bottom - top, SUBSAMPLES, right - left, SUBSAMPLES)
    return blocks.mean(axis=(1, 3), dtype=np.float32), slice(top, bottom), slice(left, right)
