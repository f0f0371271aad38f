"""Interpolation to a size."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.images import IMAGE
from propolis_conformance.images import IMAGE_SIZES
from propolis_conformance.images import ROW_SIZES
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.images import Sizes
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


_ALIGNED = tuple({**given, "align_corners": True} for given in _SIZES)
OPS["upsample_bilinear2d"] = OpInfo(_bilinear, (Recipe(IMAGE, (*_SIZES, *_ALIGNED), IMAGE_SIZES),))
