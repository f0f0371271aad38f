"""Interpolation to a size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.images import IMAGE
from propolis_conformance.images import IMAGE_SIZES
from propolis_conformance.images import ROW_SIZES
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import NotValidError
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_conformance.images import Sizes
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}


def _nearest(x: Array, size: Sizes) -> Array:
    sizes = (size,) if isinstance(size, int) else size
    for dim, n in enumerate(sizes, 2):
        x = np.take(x, [i * x.shape[dim] // n for i in range(n)], dim)
    return x


_LENGTHS = ({"size": 7}, {"size": 24}, {"size": 11}, {"size": 1})
_SIZES = ({"size": (5, 24)}, {"size": (18, 3)}, {"size": (9, 11)}, {"size": (1, 33)})
OPS["upsample_nearest1d"] = OpInfo(_nearest, (Recipe({"x": T("b c l")}, _LENGTHS, ROW_SIZES),))
OPS["upsample_nearest2d"] = OpInfo(_nearest, (Recipe(IMAGE, _SIZES, IMAGE_SIZES),))


def _bilinear(x: Array, size: tuple[int, int], *, align_corners: bool = False) -> Array:
    for dim, n in enumerate(size, 2):
        length = x.shape[dim]
        i = np.arange(n)
        if align_corners:
            source = i * (length - 1) / max(n - 1, 1)
        else:
            source = np.maximum(0, (i + 0.5) * length / n - 0.5)
        low = np.minimum(np.floor(source).astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        share = (source - low).reshape(-1, *(1,) * (3 - dim))
        x = np.take(x, low, dim) * (1 - share) + np.take(x, high, dim) * share
    return x


def _cubic(x: float, a: float) -> float:
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def _filter(mode: str, a: float) -> Callable[[float], float]:
    return (lambda x: _cubic(x, a)) if mode == "bicubic" else (lambda x: max(0.0, 1 - abs(x)))


def _rows(length: int, n: int, ratio: float, mode: str, aligned: bool, antialias: bool) -> Array:
    """A matrix (n, length): what each element of the source counts in each of the result."""
    y = np.zeros((n, length))
    if antialias:
        wider, weight = max(ratio, 1.0), _filter(mode, -0.5)
        reach = wider * (2 if mode == "bicubic" else 1)
        for i in range(n):
            centre = (i + 0.5) * ratio
            if centre > length + wider / 2:  # weights of next to nothing, by their sum
                msg = f"row {i} of {n} lies outside: the size was not rounded from the scale"
                raise NotValidError(msg)
            first, end = max(0, int(centre - reach + 0.5)), int(centre + reach + 0.5)
            for j in range(first, min(length, end)):
                y[i, j] = weight((j + 0.5 - centre) / wider)
            y[i] /= y[i].sum() or 1
        return y
    weight = _filter(mode, -0.75)
    for i in range(n):
        source = i * ratio if aligned else (i + 0.5) * ratio - 0.5
        source = source if mode == "bicubic" else max(0.0, source)
        for j in range(math.floor(source) - 1, math.floor(source) + 3):
            y[i, min(max(j, 0), length - 1)] += weight(source - j)
    return y


def _resize(
    x: Array,
    size: tuple[int, int] | None = None,
    *,
    mode: str = "bilinear",
    antialias: bool = False,
    align_corners: bool = False,
    scale: float | tuple[float, float] | None = None,
) -> Array:
    scale = (scale, scale) if isinstance(scale, float) else scale
    if size is None:
        assert scale is not None  # noqa: S101  of every call without a size
        size = math.floor(x.shape[2] * scale[0]), math.floor(x.shape[3] * scale[1])
    filters = []
    for dim, n in enumerate(size):
        length = x.shape[2 + dim]
        ratio = length / n if scale is None else 1 / scale[dim]
        if align_corners:
            ratio = (length - 1) / (n - 1) if n > 1 else 0.0
        filters.append(_rows(length, n, ratio, mode, align_corners, antialias))
    return np.asarray(filters[0] @ x @ filters[1].T)


_MODES = tuple(
    {"mode": mode, **more}
    for mode in ("bilinear", "bicubic")
    for more in ({}, {"antialias": True}, {"align_corners": True})
)
_RESIZED = tuple({**size, **given} for size in _SIZES[:3] for given in _MODES)
_SCALED: AttributeSets = (
    {"size": (3, 18), "mode": "bicubic", "scale": (0.37, 1.7)},
    {"size": (3, 18), "mode": "bicubic", "scale": (0.37, 1.7), "antialias": True},
    {"size": (20, 4), "mode": "bilinear", "scale": (2.3, 0.4)},
    {"size": None, "mode": "bicubic", "scale": 1.5},
)
OPS["resize2d"] = OpInfo(
    _resize, (Recipe(IMAGE, (*_RESIZED, *_SCALED), IMAGE_SIZES, special=False),)
)

_ALIGNED = tuple({**given, "align_corners": True} for given in _SIZES)
OPS["upsample_bilinear2d"] = OpInfo(_bilinear, (Recipe(IMAGE, (*_SIZES, *_ALIGNED), IMAGE_SIZES),))
