"""Pooling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.images import IMAGE
from propolis_conformance.images import IMAGE_SIZES
from propolis_conformance.images import SPREAD
from propolis_conformance.images import VIDEO
from propolis_conformance.images import VIDEO_SIZES
from propolis_conformance.images import WINDOWS
from propolis_conformance.images import each
from propolis_conformance.images import padded
from propolis_conformance.images import taps
from propolis_conformance.inputs import Recipe
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_conformance.images import Sizes
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}


def _beyond(
    x: Array, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, value: float
) -> Array:
    """A padded image with what its last windows need, which begin in the image or before it."""
    given = (kernel, stride, padding, dilation)
    geometry = zip(x.shape[2:], *(each(n, x.ndim - 2) for n in given), strict=True)
    more = []
    for n, k, s, p, d in geometry:
        reach = d * (k - 1) + 1
        last = math.ceil((n - reach) / s) * s
        last -= s if last >= n - p else 0  # in the padding behind the image
        more.append((0, max(0, last + reach - n)))
    return np.pad(x, [(0, 0), (0, 0), *more], constant_values=value)


def _avg_pool(
    x: Array,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Array:
    step = kernel if stride is None else stride
    image = padded(x, padding, 0)
    inside = padded(np.ones_like(x), padding, 1 if count_padding else 0)
    if ceil_mode:
        image, inside = (_beyond(a, kernel, step, padding, 1, 0) for a in (image, inside))
    total = sum(s for _, s in taps(image, kernel, step, 1))
    return np.asarray(total / sum(s for _, s in taps(inside, kernel, step, 1)))


_COUNTED: AttributeSets = (
    {"kernel": 3, "padding": 1, "count_padding": False},
    {"kernel": 3, "padding": 1},
)
_CEIL: AttributeSets = (
    {"kernel": 2, "ceil_mode": True},
    {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel": (3, 2), "stride": (4, 3), "padding": (1, 0), "ceil_mode": True},
)
_CEIL_COUNTED = tuple({**given, "count_padding": False} for given in _CEIL)
OPS["avg_pool2d"] = OpInfo(
    _avg_pool, (Recipe(IMAGE, (*WINDOWS, *_COUNTED, *_CEIL, *_CEIL_COUNTED), IMAGE_SIZES),)
)
_WINDOWS3: AttributeSets = (
    {"kernel": 2},
    {"kernel": (1, 3, 2), "stride": (1, 2, 1), "padding": (0, 1, 1)},
    {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True},
)
_COUNTED3: AttributeSets = ({"kernel": 3, "stride": 2, "padding": 1, "count_padding": False},)
OPS["avg_pool3d"] = OpInfo(_avg_pool, (Recipe(VIDEO, (*_WINDOWS3, *_COUNTED3), VIDEO_SIZES),))


def _max_pool(
    x: Array,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Array:
    step = kernel if stride is None else stride
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    image = padded(x, padding, least)
    if ceil_mode:
        image = _beyond(image, kernel, step, padding, dilation, least)
    return np.asarray(np.max(np.stack([s for _, s in taps(image, kernel, step, dilation)]), 0))


_EDGES = (
    {"kernel": 3, "padding": 1, "dilation": 2},
    {"kernel": 2, "padding": 1, "stride": 1},
)
OPS["max_pool2d"] = OpInfo(
    _max_pool,
    (Recipe(IMAGE, (*WINDOWS, *SPREAD, *_EDGES, *_CEIL), IMAGE_SIZES, ties=True, extreme=True),),
)
_SPREAD3: AttributeSets = ({"kernel": 2, "dilation": (2, 1, 3), "stride": 1},)
OPS["max_pool3d"] = OpInfo(
    _max_pool, (Recipe(VIDEO, (*_WINDOWS3, *_SPREAD3), VIDEO_SIZES, ties=True, extreme=True),)
)


def _adaptive(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def of(x: Array, size: Sizes) -> Array:
        rows, columns = each(size, 2)
        y = np.empty((*x.shape[:2], rows, columns), x.dtype)
        for i, j in np.ndindex(rows, columns):
            y[:, :, i, j] = reduce(
                x[:, :, _share(x.shape[2], i, rows), _share(x.shape[3], j, columns)], axis=(2, 3)
            )
        return y

    return of


def _share(length: int, index: int, count: int) -> slice:
    """One of ``count`` windows that cover so many elements."""
    return slice(index * length // count, math.ceil((index + 1) * length / count))


_SIZES: AttributeSets = ({"size": 1}, {"size": (3, 4)}, {"size": (9, 2)}, {"size": 13})
OPS["adaptive_avg_pool2d"] = OpInfo(_adaptive(np.mean), (Recipe(IMAGE, _SIZES, IMAGE_SIZES),))
OPS["adaptive_max_pool2d"] = OpInfo(
    _adaptive(np.max), (Recipe(IMAGE, _SIZES, IMAGE_SIZES, ties=True, extreme=True),)
)
