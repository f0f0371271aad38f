"""Integers of a dtype by Python's own, which have no bounds: saturated, or wrapped around."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_conformance.op_info import Array


def saturated(value: float, kind: np.dtype) -> int:
    """A number truncated toward zero and clamped to an integer dtype; NaN is 0."""
    info = np.iinfo(kind)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return int(info.max if value > 0 else info.min)
    return min(max(int(value), info.min), info.max)


def wrapped(value: int, kind: np.dtype) -> int:
    """A whole number modulo the range of an integer dtype."""
    info = np.iinfo(kind)
    return (value - info.min) % (1 << info.bits) + info.min


def each(function: Callable[..., int], *arrays: Array) -> Array:
    """A function of Python's unbounded integers, element by element, wrapped around."""
    kind = arrays[0].dtype
    same = np.broadcast_arrays(*arrays)
    values = [
        wrapped(function(*map(int, n)), kind) for n in zip(*(a.flat for a in same), strict=True)
    ]
    return np.array(values, kind).reshape(same[0].shape)
