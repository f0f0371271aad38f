"""Pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.images import IMAGE
from propolis_conformance.images import IMAGE_SIZES
from propolis_conformance.images import SPREAD
from propolis_conformance.images import WINDOWS
from propolis_conformance.images import padded
from propolis_conformance.images import taps
from propolis_conformance.inputs import Recipe
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.images import Sizes
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}


def _avg_pool2d(
    x: Array,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    count_padding: bool = True,
) -> Array:
    step = kernel if stride is None else stride
    total = sum(s for _, _, s in taps(padded(x, padding, 0), kernel, step, 1))
    inside = padded(np.ones_like(x), padding, 1 if count_padding else 0)
    return np.asarray(total / sum(s for _, _, s in taps(inside, kernel, step, 1)))


_COUNTED: AttributeSets = (
    {"kernel": 3, "padding": 1, "count_padding": False},
    {"kernel": 3, "padding": 1},
)
OPS["avg_pool2d"] = OpInfo(_avg_pool2d, (Recipe(IMAGE, (*WINDOWS, *_COUNTED), IMAGE_SIZES),))


def _max_pool2d(
    x: Array,
    kernel: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Array:
    step = kernel if stride is None else stride
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    seen = [s for _, _, s in taps(padded(x, padding, least), kernel, step, dilation)]
    return np.asarray(np.max(np.stack(seen), 0))


_EDGES = (
    {"kernel": 3, "padding": 1, "dilation": 2},
    {"kernel": 2, "padding": 1, "stride": 1},
)
OPS["max_pool2d"] = OpInfo(
    _max_pool2d,
    (Recipe(IMAGE, (*WINDOWS, *SPREAD, *_EDGES), IMAGE_SIZES, ties=True, extreme=True),),
)
